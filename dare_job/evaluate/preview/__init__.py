"""``dare-job preview``: generates the texts of a few rows in this process, without a run.

    command.py  the preview of each variant (model or prompt set), one after the other
    decode.py   texts, with and without drafts        drafts.py  what drafts are made of
    results.py  what the gates say, which limit fits  screen.py, page.py  how it is shown
"""
