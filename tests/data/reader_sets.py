"""MovieLens, Amazon and RecBole in miniature, as ``public_sets``: each has a reader of its own."""

from public_sets import NO_DATE, Case, tabs, utc

MOVIES_1M = ["1::Kite Story (1995)::Animation|Children's|Comedy",
             "2::Misérables, Les (1995)::Drama".encode("latin-1"), "3::Aliens: The Return (1986)::Action"]
ITEMS_1M = [
    ("1", "Kite Story (1995)", {"genre": "Animation", "other_genres": "Children's, Comedy", "year": "1995"}),
    ("2", "Les Misérables (1995)", {"genre": "Drama", "year": "1995"}),
    ("3", "Aliens: The Return (1986)", {"genre": "Action", "year": "1986"})]
LINES_OF_USERS_1M = ["1::F::1::10::00067", "2::M::56::16::70072-11"]
USERS_1M = [("1", {"gender": "female", "age": "under 18", "occupation": "K-12 student"}),
            ("2", {"gender": "male", "age": "56 and over", "occupation": "self-employed"})]
LIPS = {"category": "Beauty", "subcategory": "Lips & Nails", "brand": "Acme"}

CASES = {
    "MovieLens 100K": Case(
        "movielens",
        {"u.data": [tabs("196", "242", "3", "881250949"), tabs("186", "267", "3", "891717742"),
                    tabs("186", "267", "0", "891717742"), tabs("186", "267", "3")],
         "u.item": [
             "242|Café, Le (Tea) (1996)|1-Jan-1996|||0|0|0|0|0|1|0|0|0|0|0|0|0|0|1|0|0|0|0".encode("latin-1"),
             "267|unknown||||1|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0|0", "268|Short|x"],
         "u.user": ["196|49|M|writer|T8H1N", "186|17|F|student|00000"],
         "u.genre": ["unknown|0", "Action|1", ""], "ua.base": [tabs("196", "242", "3", "881250949")]},
        [("196", "242", 3.0, 881250949), ("186", "267", 3.0, 891717742)],
        [("242", "Le Café (Tea) (1996)", {"genre": "Comedy", "other_genres": "Romance", "year": "1996"}),
         ("267", "unknown", {"genre": "unknown"})],
        [("196", {"gender": "male", "age": "45-49", "occupation": "writer"}),
         ("186", {"gender": "female", "age": "under 18", "occupation": "student"})],
        {"u.data:3": "rating is outside 0.5 to 5", "u.data:4": "expected 4 fields, found 3",
         "u.item:3": "expected 24 fields, found 3"}),
    "MovieLens 1M": Case(
        "movielens",
        {"ratings.dat": ["1::1::5::978300760", "1::2::3::978302109", "2::3::0::978300275", "2::3::4::"],
         "movies.dat": MOVIES_1M, "users.dat": LINES_OF_USERS_1M},
        [("1", "1", 5.0, 978300760), ("1", "2", 3.0, 978302109)], ITEMS_1M, USERS_1M,
        {"ratings.dat:3": "rating is outside 0.5 to 5", "ratings.dat:4": "timestamp is missing"}),
    "MovieLens 1M as sequences": Case(
        "movielens",
        {"sequences_full.txt.gz": ["0 1 0", "1 0 9"], "user_list.txt": ["org_id remap_id", "2 0", "1 1"],
         "item_list.txt": ["org_id remap_id title category", '3 0 "Aliens: The Return (1986)" Action',
                           '1 1 "Kite Story (1995)" Comedy'],
         "movies.dat": MOVIES_1M, "users.dat": LINES_OF_USERS_1M},
        [("2", "1", None, 0), ("2", "3", None, 1), ("1", "3", None, 0)], ITEMS_1M, USERS_1M,
        {"sequences_full.txt.gz:2": "item_id is missing"}),
    "MovieLens 10M": Case(
        "movielens",
        {"ratings.dat": ["1::1::4.5::838985046", "1::2::0.5::838983525", "1::2"],
         "movies.dat": ["1::Été, L' (1996)::Drama", "2::Kites::(no genres listed)"],
         "tags.dat": ["15::1::a::b::1215184630"]},
        [("1", "1", 4.5, 838985046), ("1", "2", 0.5, 838983525)],
        [("1", "L'Été (1996)", {"genre": "Drama", "year": "1996"}), ("2", "Kites", {})],
        problems={"ratings.dat:3": "expected 4 fields, found 2"}),
    "MovieLens latest": Case(
        "movielens",
        {"ratings.csv": ["userId,movieId,rating,timestamp", "1,11,4.5,964982703", "1,12,0.5,964982704",
                         "1,12,0.0,964982704", "1,12,4.0,soon"],
         "movies.csv": ["movieId,title,genres", '11,"American Kite, The (1995)",Comedy|Drama',
                        '12,"Say ""Cheese"" Ŝtelo (2001) ",(no genres listed)', "13,Owls,Horror"],
         "tags.csv": ["userId,movieId,tag,timestamp", "1,11,NA,964982703"],
         "links.csv": ["movieId,imdbId,tmdbId", "11,0114709,862", "12,0114710,"]},
        [("1", "11", 4.5, 964982703), ("1", "12", 0.5, 964982704)],
        [("11", "The American Kite (1995)", {"genre": "Comedy", "other_genres": "Drama", "year": "1995"}),
         ("12", 'Say "Cheese" Ŝtelo (2001)', {"year": "2001"}), ("13", "Owls", {"genre": "Horror"})],
        problems={"ratings.csv:4": "rating is outside 0.5 to 5", "ratings.csv:5": NO_DATE}),
    "MovieLens 20M on Kaggle": Case(
        "movielens",
        {"rating.csv": ['"userId","movieId","rating","timestamp"', '1,2,3.5,"2005-04-02 23:53:47"',
                        '2,11,4,"2005-04-02 23:31:16"', '2,11,4,""'],
         "movie.csv": ['"movieId","title","genres"', '2,"Kite Story (1995)","Adventure|Fantasy"',
                       '11,"American Kite, The (1995)","Comedy"'],
         "link.csv": ['"movieId","imdbId","tmdbId"', "2,113497,8844"]},
        [("1", "2", 3.5, utc("2005-04-02 23:53:47")), ("2", "11", 4.0, utc("2005-04-02 23:31:16"))],
        [("2", "Kite Story (1995)", {"genre": "Adventure", "other_genres": "Fantasy", "year": "1995"}),
         ("11", "The American Kite (1995)", {"genre": "Comedy", "year": "1995"})],
        problems={"rating.csv:4": "timestamp is missing"}),
    "Amazon 2014": Case(
        "amazon",
        {"reviews_Beauty_5.json.gz": [
            {"reviewerID": "A2", "asin": "0000013714", "reviewerName": "Ann", "helpful": [0, 1],
             "reviewText": '"b"', "overall": 5.0, "unixReviewTime": 1252800000, "reviewTime": "09 13, 2009"},
            {"reviewerID": "A3", "asin": "0000013714", "overall": 0.0, "unixReviewTime": 1252886400},
            {"reviewerID": "A3", "asin": "B1", "overall": 4.0, "reviewTime": "09 13, 2009"},
            '{"reviewerID": "A3", "asin": '],
         "meta_Beauty.json.gz": [
             repr({"asin": "0000013714", "description": "x", "title": "Bob's &amp; \"Lip\"", "price": 4.99,
                   "salesRank": {"Beauty": 3}, "brand": "Acme", "related": {"also_viewed": ["B1"]},
                   "categories": [["Beauty", "Lips &amp; Nails"], ["Beauty", "Gifts"]]}),
             "{'asin': 'B1', 'title': None, 'categories': [[]], 'imUrl': 'x'}", "{'asin': 'B2', 'title': "]},
        [("A2", "0000013714", 5.0, 1252800000), ("A3", "0000013714", 0.0, 1252886400)],
        [("0000013714", 'Bob\'s & "Lip"', LIPS), ("B1", None, {})],
        problems={"reviews_Beauty_5.json.gz:3": "timestamp is missing",
                  "reviews_Beauty_5.json.gz:4": "not a JSON object",
                  "meta_Beauty.json.gz:3": "not a JSON object"}),
    "Amazon 2018": Case(
        "amazon",
        {"All_Beauty_5.json.gz": [
            {"overall": 5.0, "vote": "1,024", "verified": True, "reviewTime": "01 1, 2018",
             "reviewerID": "A2", "asin": "B0001", "style": {"Size:": " 1"}, "reviewText": "a\nb",
             "unixReviewTime": 1514764800},
            {"overall": 6.0, "reviewerID": "A2", "asin": "B0001", "unixReviewTime": 1514764800},
            {"overall": 5.0, "asin": "B0001", "unixReviewTime": 1514764800}],
         "meta_All_Beauty.json.gz": [
             {"category": ["Beauty", "Lips &amp; Nails"], "tech1": "", "description": ["x"],
              "title": "Kite &amp; Lip", "brand": "\n  Acme", "rank": "7 in Beauty (", "price": "$4.99",
              "asin": "B0001", "details": {}},
             {"category": [], "title": "var a = (new Date()).getTime();\n", "brand": "", "asin": "B0002"}]},
        [("A2", "B0001", 5.0, 1514764800)], [("B0001", "Kite & Lip", LIPS), ("B0002", None, {})],
        problems={"All_Beauty_5.json.gz:2": "rating is outside 0 to 5",
                  "All_Beauty_5.json.gz:3": "user_id is missing"}),
    "Amazon 2023": Case(
        "amazon",
        {"All_Beauty.jsonl": [
            {"rating": 5.0, "title": "Of the review", "text": "x", "images": [], "asin": "B1-red",
             "parent_asin": "B1", "user_id": "AE2", "timestamp": 1588687728923, "helpful_vote": 0},
            {"rating": 4.0, "asin": "B2", "user_id": "AE2", "sort_timestamp": 1588687729000},
            {"rating": 4.0, "parent_asin": "B2", "user_id": "AE2", "timestamp": None}],
         "meta_All_Beauty.jsonl": [
             {"main_category": "All Beauty", "title": "Brush", "average_rating": 4.8, "features": [],
              "price": None, "images": [{"variant": "MAIN"}], "videos": [{"user_id": "AE"}], "store": "Shop",
              "categories": [], "details": {"Brand": "x"}, "parent_asin": "B1", "bought_together": None},
             {"main_category": None, "title": "", "store": None, "categories": ["Beauty", "Lips"],
              "parent_asin": "B2"}]},
        [("AE2", "B1", 5.0, 1588687728), ("AE2", "B2", 4.0, 1588687729)],
        [("B1", "Brush", {"category": "All Beauty", "brand": "Shop"}),
         ("B2", None, {"category": "Beauty", "subcategory": "Lips"})],
        problems={"All_Beauty.jsonl:3": "timestamp is missing"}),
    "RecBole": Case(
        "recbole",
        {"ml-kites.inter": [
            tabs("user_id:token", "item_id:token", "rating:float", "timestamp:float"),
            tabs("196", "0242", "3", "881250949"), tabs("186", "302", "", "891717742.0"),
            tabs("186", "302", "3", ""), tabs("186", "302")],
         "ml-kites.user": [tabs("user_id:token", "age:token", "gender:token", "zip_code:token"),
                           tabs("196", "49", "", "00105")],
         "ml-kites.item": [
             tabs("item_id:token", "movie_title:token_seq", "release_year:token", "class:token_seq"),
             tabs("0242", 'Kite "Story', "1997", "Comedy Children's"), tabs("302", "", "", "")]},
        [("196", "0242", 3.0, 881250949), ("186", "302", None, 891717742)],
        [("0242", 'Kite "Story', {"release_year": "1997", "class": "Comedy Children's"}), ("302", None, {})],
        [("196", {"age": "49"})],
        {"ml-kites.inter:4": "timestamp is missing", "ml-kites.inter:5": "expected 4 fields, found 2"}),
    "RecBole, split, with the names of its source": Case(
        "recbole",
        {**{f"steam.{part}.inter": [
            tabs("user_id:token", "product_id:token", "play_hours:float", "timestamp:float",
                 "item_id_list:token_seq"),
            tabs("Ann", item, f"{item}.5", f"151346883{item}", "8 9")]
            for item, part in (("1", "train"), ("2", "valid"), ("3", "test"))},
         "steam.item": [tabs("app_name:token", "title:token_seq", "id:token", "genres:token_seq"),
                        tabs("Kites", "Kites!", "1", "['Action', 'Indie']")]},
        [("Ann", "3", 3.5, 1513468833), ("Ann", "1", 1.5, 1513468831), ("Ann", "2", 2.5, 1513468832)],
        [("1", "Kites!", {"genres": "Action, Indie"})]),
}
