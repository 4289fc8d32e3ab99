#!/bin/sh
# Finds a Chromium for the tests of the report, or installs a pinned version into FOLDER: `conf/browser.sh FOLDER`.
# Uses $DARE_BROWSER, or a Chromium or Chrome on the PATH, as it is. Never fails: the tests say what is missing.
set -eu
folder=$1
version=153.0.0
sha256=20e5656fcdcf4118ede85edfb9d6bb9cc1bbb7ffb8b75622fffbcf36a835c3c0

say() { printf 'set-up: %s\n' "$*" >&2; }
works() { "$1" --version >/dev/null 2>&1; }  # Ubuntu's chromium-browser may only name a snap

[ -n "${DARE_BROWSER:-}" ] && exit 0
for name in chromium chromium-browser google-chrome google-chrome-stable; do works "$name" && exit 0; done
[ "$(cat "$folder/version" 2>/dev/null)" = $version ] && works "$folder/chromium" && exit 0

# Chromium for machines without a desktop, with one font and the libraries that minimal images lack.
from_npm() {
  [ "$(uname -sm)" = "Linux x86_64" ] && command -v npm >/dev/null && command -v node >/dev/null || return 1
  say "fetching Chromium $version into $folder (67 MiB)"
  rm -rf "$folder" && mkdir -p "$folder/lib" "$folder/fonts"
  npm pack --silent "@sparticuz/chromium@$version" --pack-destination "$folder" >/dev/null 2>&1 || return 1
  pack=$folder/sparticuz-chromium-$version.tgz
  echo "$sha256  $pack" | sha256sum -c >/dev/null 2>&1 || { say "$pack is not the pinned one"; return 1; }
  tar -xzf "$pack" -C "$folder" --strip-components=2 package/bin
  for name in chromium al2023.tar fonts.tar; do unpacked "$folder/$name" || return 1; done
  tar -xf "$folder/al2023.tar" -C "$folder" && tar -xf "$folder/fonts.tar" -C "$folder"
  rm -f "$pack" "$folder"/*.tar "$folder"/*.br
  mv "$folder/chromium" "$folder/browser" && chmod +x "$folder/browser"
  here=$(cd "$folder" && pwd)
  cat >"$folder/fonts.conf" <<END
<?xml version="1.0"?>
<fontconfig>
  <dir>$here/fonts</dir>
  <dir>/usr/share/fonts</dir>
  <cachedir>$here/cache</cachedir>
  <alias><family>system-ui</family><prefer><family>Open Sans</family></prefer></alias>
  <alias><family>sans-serif</family><prefer><family>Open Sans</family></prefer></alias>
</fontconfig>
END
  libraries=
  ! ldd "$folder/browser" | grep -q "not found" || libraries="LD_LIBRARY_PATH=\"$here/lib\""
  cat >"$folder/chromium" <<END
#!/bin/sh
export FONTCONFIG_FILE="$here/fonts.conf" $libraries
exec "$here/browser" "\$@"
END
  chmod +x "$folder/chromium"
  works "$folder/chromium" && echo $version >"$folder/version"
}

unpacked() {
  node -e 'const fs = require("fs");
    fs.writeFileSync(process.argv[1], require("zlib").brotliDecompressSync(fs.readFileSync(process.argv[1] + ".br")))' "$1"
}

from_apt() {
  [ -f /etc/debian_version ] && [ "$(id -u)" = 0 ] && [ -z "${DARE_NO_APT:-}" ] || return 1
  say "installing Chromium with apt-get"
  apt-get update -qq >/dev/null 2>&1 || true
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core \
    >/dev/null 2>&1 && works chromium
}

from_npm || from_apt ||
  say "no Chromium found: the tests of the report need one (install Chromium or Chrome, or set DARE_BROWSER)"
