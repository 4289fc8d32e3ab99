"""Public data sets in miniature, made here, with the oddities of their files, and what is read from them.

Those that a mapping reads; ``reader_sets`` has those with a reader of their own. Values are invented;
names, columns, quotes, separators, encodings and compression are as in the real files.
"""

from datetime import datetime
from typing import NamedTuple


class Case(NamedTuple):
    """Files by name, as lines (text, bytes, or objects for JSON), and what is read from them."""

    form: str
    files: dict[str, list]
    interactions: list[tuple]  # user, item, rating, timestamp
    items: list[tuple]  # id, title, attributes
    users: list[tuple] | None = None  # id, attributes
    problems: dict[str, str] = {}  # by file and line


def utc(text):
    return int(datetime.fromisoformat(f"{text}+00:00").timestamp())


def tabs(*fields):
    return "\t".join(fields)


NO_DATE = "timestamp is neither a number nor a date as 2026-01-31 10:00:00"

BX_BOOKS = ["ISBN", "Book-Title", "Book-Author", "Year-Of-Publication", "Publisher",
            "Image-URL-S", "Image-URL-M", "Image-URL-L"]
BX_USERS = [("17", {"location": "lund, skåne, sweden"}),
            ("18", {"location": "bonn, nrw, germany", "age": "34"})]

GOODBOOKS_COLUMNS = (
    "best_book_id,work_id,books_count,isbn,isbn13,authors,original_publication_year,original_title,title,"
    "language_code,average_rating,ratings_count,work_ratings_count,work_text_reviews_count,"
    "ratings_1,ratings_2,ratings_3,ratings_4,ratings_5,image_url,small_image_url")
GOODBOOKS_BOOKS = [
    '1,901,71,81,3,39023483,9.78e+12,"Ann Berg, Bo Lund",2008.0,The Kite,"The Kite (Kites, #1)",eng,'
    "4.3,9,9,9,1,1,1,1,1,http://u,http://v",
    "2,902,72,82,3,,,Old Poet,-720.0,,Sea Song,,4.3,9,9,9,1,1,1,1,1,http://u,http://v"]
GOODBOOKS_ITEMS = [
    ("1", "The Kite (Kites, #1)", {"author": "Ann Berg, Bo Lund", "year": "2008", "language": "eng"}),
    ("2", "Sea Song", {"author": "Old Poet", "year": "-720"})]

ADDED = "Mon Jan 02 10:00:00 -0800 2017"
GOODREADS_BOOKS = [
    {"isbn": "", "asin": "", "kindle_asin": "B00", "authors": [{"author_id": "9", "role": ""}],
     "popular_shelves": [{"count": "3", "name": "to-read"}], "publisher": "Nord", "num_pages": "36",
     "description": "A kite.\nIt flies.", "publication_year": "1999", "book_id": "00501", "work_id": "",
     "title": "The Kite", "title_without_series": "The Kite"},
    {"isbn": "", "asin": "B01", "authors": [], "publisher": "", "num_pages": "", "description": "",
     "publication_year": "", "book_id": "502", "title": ""},
    {"book_id": "00501", "title": "The Kite again"}, '{"book_id": "503", "title": ']
GOODREADS_ITEMS = [
    ("00501", "The Kite", {"year": "1999", "publisher": "Nord", "pages": "36",
                           "description": "A kite. It flies."}),
    ("502", None, {}), ("00501", "The Kite again", {})]

HM_ARTICLES = (
    "article_id,product_code,prod_name,product_type_no,product_type_name,product_group_name,"
    "graphical_appearance_no,graphical_appearance_name,colour_group_code,colour_group_name,"
    "perceived_colour_value_id,perceived_colour_value_name,perceived_colour_master_id,"
    "perceived_colour_master_name,department_no,department_name,index_code,index_name,index_group_no,"
    "index_group_name,section_no,section_name,garment_group_no,garment_group_name,detail_desc")
KUAIREC_MATRIX = "user_id,video_id,play_duration,video_duration,time,date,timestamp,watch_ratio"
KUAIREC_USERS = (
    "user_id,user_active_degree,is_lowactive_period,is_live_streamer,is_video_author,follow_user_num,"
    "follow_user_num_range,fans_user_num,fans_user_num_range,friend_user_num,friend_user_num_range,"
    "register_days,register_days_range," + ",".join(f"onehot_feat{number}" for number in range(18)))
KUAIREC_CAPTIONS = (
    "video_id,manual_cover_text,caption,topic_tag,first_level_category_id,first_level_category_name,"
    "second_level_category_id,second_level_category_name,third_level_category_id,third_level_category_name")
MOVIES_METADATA = (
    "adult,belongs_to_collection,budget,genres,homepage,id,imdb_id,original_language,original_title,"
    "overview,popularity,poster_path,production_companies,production_countries,release_date,revenue,runtime,"
    "spoken_languages,status,tagline,title,video,vote_average,vote_count")
STEAM_GAMES = ("app_id,title,date_release,win,mac,linux,rating,positive_ratio,user_reviews,price_final,"
               "price_original,discount,steam_deck")
LASTFM = "userid-timestamp-artid-artname-traid-traname.tsv"

CASES = {
    "Book-Crossing": Case(
        "book_crossing",
        {"BX-Book-Ratings.csv": [
            '"User-ID";"ISBN";"Book-Rating"\r', '"17";"0000000120";"0"\r', '"17";"012345678X";"8"\r',
            '"18";"0000000120";"11"\r', '"18";"0000000120"\r', '"19";"0000000120";"10"\r'],
         "BX-Books.csv": [
             ";".join(f'"{name}"' for name in BX_BOOKS) + "\r",
             r'"0000000120";"The \"Quiet\" Cat &amp; Dog; a tale";"Ann Berg";"0";"A &amp; B";"";"";""' "\r",
             '"012345678X";"Café – am Fluss";"Bo Lund";"1999";"Süd";"";"";""\r'.encode("cp1252"),
             '"1";"Cut; short"\r'],
         "BX-Users.csv": [
             '"User-ID";"Location";"Age"\r', '"17";"lund, skåne, sweden";NULL\r'.encode("latin-1"),
             '"18";"bonn,\r', 'nrw, germany";"34"\r', r'"19";"\"porto\", n/a, portugal";"51"' "\r"]},
        [("17", "0000000120", None, 2), ("17", "012345678X", 8.0, 3), ("19", "0000000120", 10.0, 6)],
        [("0000000120", 'The "Quiet" Cat & Dog; a tale', {"author": "Ann Berg", "year": "0",
                                                          "publisher": "A & B"}),
         ("012345678X", "Café – am Fluss", {"author": "Bo Lund", "year": "1999", "publisher": "Süd"})],
        [*BX_USERS, ("19", {"location": '"porto", n/a, portugal', "age": "51"})],
        {"BX-Book-Ratings.csv:4": "rating is outside 0 to 10",
         "BX-Book-Ratings.csv:5": "expected 3 fields, found 2",
         "BX-Books.csv:4": "expected 8 fields, found 2"}),
    "Book-Crossing on Kaggle": Case(
        "book_crossing_kaggle",
        {"Ratings.csv": ["User-ID,ISBN,Book-Rating", "17,0000000120,0", "17,012345678X,8", ",012345678X,8"],
         "Books.csv": [
             ",".join(BX_BOOKS), '0000000120,"Cat &amp; Dog, a tale",Ann Berg,1999,Nord,u,u,u',
             "012345678X,Plain,,0,,u,u,u",
             r'078946697X,"Heroes, at Last\"";Bo Lund",2000,DK Publishing Inc,http://s,http://m,http://l,'],
         "Users.csv": ["User-ID,Location,Age", '17,"lund, skåne, sweden",', '18,"bonn, nrw, germany",34.0']},
        [("17", "0000000120", None, 2), ("17", "012345678X", 8.0, 3)],
        [("0000000120", "Cat & Dog, a tale", {"author": "Ann Berg", "year": "1999", "publisher": "Nord"}),
         ("012345678X", "Plain", {"year": "0"}),
         ("078946697X", r'Heroes, at Last\";Bo Lund', {"author": "2000", "year": "DK Publishing Inc",
                                                       "publisher": "http://s"})],
        BX_USERS, {"Ratings.csv:4": "user_id is missing"}),
    "Goodbooks": Case(
        "goodbooks",
        {"ratings.csv": ["user_id,book_id,rating", "1,2,5", "2,1,4", "2,2,6"],
         "books.csv": [f"book_id,goodreads_book_id,{GOODBOOKS_COLUMNS}", *GOODBOOKS_BOOKS],
         "to_read.csv": ["user_id,book_id", "1,1"], "tags.csv": ["tag_id,tag_name\r", "1,to-read\r"]},
        [("1", "2", 5.0, 2), ("2", "1", 4.0, 3)], GOODBOOKS_ITEMS,
        problems={"ratings.csv:4": "rating is outside 1 to 5"}),
    "Goodbooks on Kaggle": Case(
        "goodbooks_kaggle",
        {"ratings.csv": ["book_id,user_id,rating", "2,10,5", "1,20,4", "1,20,"],
         "books.csv": [f"id,book_id,{GOODBOOKS_COLUMNS}", *GOODBOOKS_BOOKS]},
        [("10", "2", 5.0, 2), ("20", "1", 4.0, 3), ("20", "1", None, 4)], GOODBOOKS_ITEMS),
    "Goodreads, one genre": Case(
        "goodreads",
        {"goodreads_interactions_poetry.json.gz": [
            {"user_id": "0a1f", "book_id": "00501", "review_id": "r", "is_read": True, "rating": 5,
             "review_text_incomplete": "", "date_added": ADDED, "date_updated": ADDED, "read_at": "",
             "started_at": ""},
            {"user_id": "0a1f", "book_id": "502", "is_read": False, "rating": 0, "date_added": ADDED},
            {"user_id": "0a1f", "book_id": "502", "is_read": False, "rating": 0, "date_added": ""},
            {"user_id": "0a1f", "book_id": "502", "is_read": False, "rating": 0, "date_added": "2017-01-02"}],
         "goodreads_books_poetry.json.gz": GOODREADS_BOOKS,
         "goodreads_book_authors.json.gz": [{"author_id": "9", "name": "Ann Berg"}]},
        [("0a1f", "00501", 5.0, utc("2017-01-02 18:00")), ("0a1f", "502", None, utc("2017-01-02 18:00"))],
        GOODREADS_ITEMS,
        problems={"goodreads_interactions_poetry.json.gz:3": "timestamp is missing",
                  "goodreads_interactions_poetry.json.gz:4":
                  "timestamp is not of the format %a %b %d %H:%M:%S %z %Y",
                  "goodreads_books_poetry.json.gz:4": "not a JSON object"}),
    "Goodreads, csv": Case(
        "goodreads_csv",
        {"goodreads_interactions.csv": ["user_id,book_id,is_read,rating,is_reviewed", "0,948,1,5,0",
                                        "0,947,0,0,0", "1,5,1,3,0", "1,948,1"],
         "book_id_map.csv": ["book_id_csv,book_id", "947,502", "948,00501"],
         "user_id_map.csv": ["user_id_csv,user_id", "0,0a1f"], "goodreads_books.json.gz": GOODREADS_BOOKS},
        [("0", "00501", 5.0, 2), ("0", "502", None, 3)], GOODREADS_ITEMS,
        problems={"goodreads_interactions.csv:4": "item_id is not in book_id_map.csv",
                  "goodreads_interactions.csv:5": "expected 5 fields, found 3",
                  "goodreads_books.json.gz:4": "not a JSON object"}),
    "H&M": Case(
        "hm",
        {"transactions_train.csv": [
            "t_dat,customer_id,article_id,price,sales_channel_id",
            *["2018-09-20,000058a1,0663713001,0.0508305,2"] * 2, "2018-09-21,00007d2d,0541518023,0.03,1",
            ",00007d2d,0541518023,0.03,1", "2018-09-21,00007d2d,0541518023"],
         "articles.csv": [
             HM_ARTICLES,
             "0663713001,0663713,Strap top,253,Vest top,Upper body,1,Solid,09,Black,4,Dark,5,Black,16,"
             'Basics,A,Wear,1,Wear,16,Everyday,2,Jersey,"Top with ""thin"" straps, in jersey."',
             "0541518023,0541518,Strap top,-1,Unknown,Unknown,1,Solid,10,White,4,Light,5,White,16,"
             "Basics,A,Wear,1,Wear,16,Everyday,2,Jersey,"],
         "customers.csv": ["customer_id,FN,Active,club_member_status,fashion_news_frequency,age,postal_code",
                           "000058a1,,,ACTIVE,NONE,49,52043e", "00007d2d,1.0,1.0,,None,,2973ab"]},
        [*[("000058a1", "0663713001", None, utc("2018-09-20"))] * 2,
         ("00007d2d", "0541518023", None, utc("2018-09-21"))],
        [("0663713001", "Strap top", {
            "type": "Vest top", "group": "Upper body", "colour": "Black", "section": "Everyday",
            "description": 'Top with "thin" straps, in jersey.'}),
         ("0541518023", "Strap top", {
             "type": "Unknown", "group": "Unknown", "colour": "White", "section": "Everyday"})],
        [("000058a1", {"age": "49", "club": "ACTIVE"}), ("00007d2d", {})],
        {"transactions_train.csv:5": "timestamp is missing",
         "transactions_train.csv:6": "expected 5 fields, found 3"}),
    "KuaiRec": Case(
        "kuairec",
        {"big_matrix.csv": [
            KUAIREC_MATRIX, "0,3649,13838,10867,2020-07-05 00:08:23.438,20200705,1593878903.438,5.25",
            "0,9598,0,10984,2020-07-05 00:13:41.297,20200705,1593879221.297,0.0",
            "1,9598,60000,10984,,,,5.46"],
         "small_matrix.csv": [KUAIREC_MATRIX, "14,148,4381,6067,,,,0.72"],
         "kuairec_caption_category.csv": [
             KUAIREC_CAPTIONS,
             '3649,UNKNOWN,"一只 ""猫""', '在飞 #猫","[猫, 飞]",8,颜值,673,颜值随拍,-124,UNKNOWN',
             "9598,UNKNOWN,UNKNOWN,[],9,喜剧,-124,UNKNOWN,-124,UNKNOWN", "10,,,,,,,,,",
             '12,UNKNOWN,say "cheese",[猫],9,喜剧,727,搞笑互动,-124,UNKNOWN', "13,UNKNOWN,cut"],
         "user_features.csv": [
             KUAIREC_USERS, '0,high_active,0,0,0,5,"(0,10]",0,0,0,0,107,61-90,0,1' + "," * 16,
             '1,UNKNOWN,0,0,0,5,"(0,10]",0,0,0,0,107,500+,0,1' + "," * 16]},
        [("0", "3649", 5.25, 1593878903), ("0", "9598", 0.0, 1593879221)],
        [("3649", '一只 "猫" 在飞 #猫', {"category": "颜值", "subcategory": "颜值随拍", "topic": "猫, 飞"}),
         ("9598", None, {"category": "喜剧"}), ("10", None, {}),
         ("12", 'say "cheese"', {"category": "喜剧", "subcategory": "搞笑互动", "topic": "猫"})],
        [("0", {"activity": "high_active", "registered_days": "61-90"}), ("1", {"registered_days": "500+"})],
        {"big_matrix.csv:4": "timestamp is missing",
         "kuairec_caption_category.csv:7": "expected 10 fields, found 3"}),
    "Last.fm-1K": Case(
        "lastfm_1k",
        {LASTFM: [
            tabs("user_000001", "2009-05-04T23:08:57Z", "a1", "Die Vögel", "t1", 'Kite 12" Mix'),
            tabs("user_000001", "2009-05-04T13:54:10Z", "", 'The "Owls', "", "Night"),
            tabs("user_000002", "2009-05-04T13:52:04Z", "", "The Owls", ""),
            tabs("user_000002", "", "a1", "Die Vögel", "t1", 'Kite 12" Mix'),
            tabs("user_000002", "2009-05-04T13:52:04Z", "", "", "", "")],
         "userid-profile.tsv": [tabs("#id", "gender", "age", "country", "registered"),
                                tabs("user_000001", "m", "", "Japan", "Aug 13, 2006"),
                                tabs("user_000002", "", "31", "Perú", "")]},
        [("user_000001", "t1", None, utc("2009-05-04 23:08:57")),
         ("user_000001", 'The "Owls - Night', None, utc("2009-05-04 13:54:10"))],
        [("t1", 'Die Vögel - Kite 12" Mix', {"artist": "Die Vögel"}),
         ('The "Owls - Night', 'The "Owls - Night', {"artist": 'The "Owls'}),
         ("t1", 'Die Vögel - Kite 12" Mix', {"artist": "Die Vögel"})],
        [("user_000001", {"gender": "m", "country": "Japan"}),
         ("user_000002", {"age": "31", "country": "Perú"})],
        {f"{LASTFM}:3": "expected 6 fields, found 5", f"{LASTFM}:4": "timestamp is missing",
         f"{LASTFM}:5": "item_id is missing"}),
    "MIND": Case(
        "mind",
        {"behaviors.tsv": [
            tabs("1", "U1", "11/15/2019 12:05:32 PM", "N9 N8", "N1-0 N2-1 N-3-1"),
            tabs("2", "U2", "11/13/2019 8:36:57 AM", "", "N1-1"),
            tabs("3", "U2", "11/13/2019 8:36:57 AM", "", "N1-0 N2-0"),
            tabs("4", "U2", "11/13/2019 8:36:57 AM", "N9", "N1 N2"),
            tabs("5", "U2", "2019-11-13", "N9", "N1-1"), tabs("6", "U2")],
         "news.tsv": [
             tabs("N1", "sports", "golf", 'A "kite', "", "https://x/1", "[]", "[]"),
             tabs("N2", "news", "world", "Owls & cats", "They meet", "u", '[{"Label": "Owl"}]', "[]"),
             tabs("N3", "news")]},
        [("U1", "N2", None, utc("2019-11-15 12:05:32")), ("U1", "N-3", None, utc("2019-11-15 12:05:32")),
         ("U2", "N1", None, utc("2019-11-13 08:36:57"))],
        [("N1", 'A "kite', {"category": "sports", "subcategory": "golf"}),
         ("N2", "Owls & cats", {"category": "news", "subcategory": "world", "abstract": "They meet"})],
        problems={"behaviors.tsv:5": "timestamp is not of the format %m/%d/%Y %I:%M:%S %p",
                  "behaviors.tsv:6": "expected 5 fields, found 2",
                  "news.tsv:3": "expected 8 fields, found 2"}),
    "The Movies Dataset": Case(
        "movies_dataset",
        {"ratings.csv": ["userId,movieId,rating,timestamp", "1,110,1.0,1425941529", "1,147,4.5,1425942435",
                         "1,858,5.0,1425941523"],
         "links.csv": ["movieId,imdbId,tmdbId", "110,0112573,862", "147,0112302,"],
         "movies_metadata.csv": [
             MOVIES_METADATA,
             """False,"{'id': 7, 'name': ""Ann's Kites""}",0,"[{'id': 16, 'name': 'Animation'}, """
             """{'id': 35, 'name': ""Kids' Comedy""}]",,862,tt0114709,en,Kite,"A ""kite"",""",
             """and an owl.",21.9,/p.jpg,"[{'name': None, 'id': 3}]",[],1995-10-30,0,81.0,[],"""
             "Released,,Kite Story,False,7.7,5415",
             "False,,0,[],,863,,en,Owl,,0.1,,[],[],,0,,[],Released,,Owl,False,,",
             "False,,0,[],,82663,tt0113002,en,Midnight",
             " - Written by Bo,0.06,/f.jpg,[],[],1997-08-20,0,104.0,[]"],
         "ratings_small.csv": ["userId,movieId,rating,timestamp", "1,110,1.0,1425941529"],
         "links_small.csv": ["movieId,imdbId,tmdbId", "110,0112573,862"],
         "keywords.csv": ["id,keywords", "862,[]"], "credits.csv": ["cast,crew,id", "[],[],862"]},
        [("1", "862", 1.0, 1425941529)],
        [("862", "Kite Story", {"genre": "Animation, Kids' Comedy", "language": "en",
                                "released": "1995-10-30", "overview": 'A "kite", and an owl.'}),
         ("863", "Owl", {"language": "en"})],
        problems={"ratings.csv:3": "item_id is not in links.csv",
                  "ratings.csv:4": "item_id is not in links.csv",
                  "movies_metadata.csv:5": "expected 24 fields, found 9",
                  "movies_metadata.csv:6": "expected 24 fields, found 9"}),
    "Steam": Case(
        "steam",
        {"steam_reviews.json.gz": [
            r"{u'username': u'Ann\'s \u2603', u'hours': 12.5, u'products': 8, u'product_id': u'00328', "
            "u'page_order': 0, u'date': u'2017-12-17', u'text': u'a \"b\"', u'early_access': False}",
            "{u'username': u'Bo', u'product_id': u'10', u'date': u'2017-12-18', u'user_id': u'7656'}",
            "{u'username': u'Bo', u'product_id': u'10', u'date': u''}",
            "{u'username': u'Bo', u'product_id': u'10', u'date': u'2017"],
         "steam_games.json.gz": [
             "{u'publisher': u'Nord', u'genres': [u'Action', u'Indie'], u'app_name': u'Kites', "
             "u'title': u'Kites!', u'release_date': u'2018-01-04', u'tags': [u'Strategy'], "
             r"u'price': 4.99, u'early_access': False, u'id': u'00328', u'developer': u'Ann\xe9'}",
             "{u'app_name': u'Owls', u'price': u'Free to Play', u'id': u'10', u'release_date': u'Soon..'}",
             "{u'app_name': u'Without an id'}"]},
        [("Ann's ☃", "00328", 12.5, utc("2017-12-17")), ("Bo", "10", None, utc("2017-12-18"))],
        [("00328", "Kites!", {"genre": "Action, Indie", "developer": "Anné", "publisher": "Nord",
                              "tags": "Strategy", "released": "2018-01-04"}),
         ("10", "Owls", {"released": "Soon.."})],
        problems={"steam_reviews.json.gz:3": "timestamp is missing",
                  "steam_reviews.json.gz:4": "not a JSON object",
                  "steam_games.json.gz:3": "item_id is missing"}),
    "Steam-200k": Case(
        "steam_200k",
        {"steam-200k.csv": [
            "151603712,Kites,purchase,1.0,0", "151603712,Kites,play,273.0,0",
            '151603712,"Owls, the ""Game""",purchase,1.0,0', "59945701,Kites,play,0.5,0",
            "59945701,Kites,play,often,0"]},
        [("151603712", "Kites", 273.0, 2), ("59945701", "Kites", 0.5, 4)],
        [(title, title, {}) for title in ("Kites", "Kites", 'Owls, the "Game"', "Kites", "Kites")],
        problems={"steam-200k.csv:5": "rating is not a number"}),
    "Steam on Kaggle": Case(
        "steam_kaggle",
        {"recommendations.csv": [
            "app_id,helpful,funny,date,is_recommended,hours,user_id,review_id",
            "975370,0,0,2022-12-12,true,36.5,51580,0", "304390,4,0,2017-02-17,false,0.0,2586,1",
            "304390,4,0,17.02.2017,false,0.0,2586,2"],
         "games.csv": [
             STEAM_GAMES,
             '975370,"Owls, Inc.™",2006-01-02,true,false,false,Very Positive,85,631,9.99,9.99,0.0,true',
             "304390,Kites,,true,false,false,Mixed,57,355,9.99,9.99,0.0,true"],
         "users.csv": ["user_id,products,reviews", "51580,359,0"],
         "games_metadata.json": [{"app_id": 975370, "description": "", "tags": ["Indie"]}]},
        [("51580", "975370", 36.5, utc("2022-12-12")), ("2586", "304390", 0.0, utc("2017-02-17"))],
        [("975370", "Owls, Inc.™", {"reviews": "Very Positive", "released": "2006-01-02"}),
         ("304390", "Kites", {"reviews": "Mixed"})],
        problems={"recommendations.csv:4": NO_DATE}),
    "Yelp": Case(
        "yelp",
        {"yelp_academic_dataset_review.json": [
            {"review_id": "r", "user_id": "-_u1", "business_id": "_b1", "stars": 3.0, "useful": 0, "funny": 0,
             "cool": 0, "text": 'a\n"b"', "date": "2018-07-07 22:09:11"},
            {"review_id": "r", "user_id": "-_u1", "business_id": "b2", "stars": 5, "date": "2018-07-07"},
            {"review_id": "r", "user_id": "-_u1", "business_id": "b2", "stars": 6.0, "date": "2018-07-07"},
            {"review_id": "r", "user_id": None, "business_id": "b2", "stars": 1.0, "date": "2018-07-07"}],
         "yelp_academic_dataset_business.json": [
             {"business_id": "_b1", "name": "Ann's Café", "address": "", "city": "Lund", "state": "SE",
              "postal_code": "01234", "stars": 4.5, "is_open": 1, "attributes": {"WiFi": "u'free'"},
              "categories": "Food, Owls & Cats", "hours": None},
             {"business_id": "b2", "name": "Kites", "city": "", "state": "SE", "attributes": None,
              "categories": None, "hours": None},
             {"business_id": "b3", "name": "Old", "city": "Bonn", "categories": ["Food", "Owls"]}],
         "yelp_academic_dataset_user.json": [
             {"user_id": "-_u1", "name": "Ann", "yelping_since": "2007-01-25 16:47:26",
              "elite": "2009,20,20", "friends": "None", "average_stars": 3.9}]},
        [("-_u1", "_b1", 3.0, utc("2018-07-07 22:09:11")), ("-_u1", "b2", 5.0, utc("2018-07-07"))],
        [("_b1", "Ann's Café", {"categories": "Food, Owls & Cats", "city": "Lund", "state": "SE"}),
         ("b2", "Kites", {"state": "SE"}), ("b3", "Old", {"categories": "Food, Owls", "city": "Bonn"})],
        [("-_u1", {"member_since": "2007-01-25 16:47:26"})],
        {"yelp_academic_dataset_review.json:3": "rating is outside 0 to 5",
         "yelp_academic_dataset_review.json:4": "user_id is missing"}),
}
