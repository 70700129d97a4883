"""The words that generated pages are made of. Few enough for a small vocabulary, many enough that no
two pages are alike: millions of titles, items and mottos come from these lists.
"""

COLORS = (
    "Amber Azure Coral Copper Crimson Emerald Golden Indigo Ivory Jade Lemon Lilac Maroon Olive Onyx Pearl "
    "Russet Saffron Scarlet Silver Teal Umber Violet White"
).split()

PLACES = (
    "Bay Bridge Brook Canyon Cliff Corner Creek Dale Field Forest Garden Gate Glen Grove Harbor Hill Island "
    "Lake Lane Meadow Mill Orchard Park Pier Pond Ridge River Square Summit Terrace Tower Valley Village Wharf"
).split()

TRADES = (
    "Archive Bakery Bistro Books Brewery Cafe Clinic Cycles Dairy Design Diner Farm Florist Gallery Grill "
    "Hotel Library Market Museum Optics Pottery Press Studio Tailor Theater Travel Winery Workshop"
).split()

QUALITIES = (
    "Baked Bold Bright Calm Classic Clear Cold Crisp Daily Deep Early Family Fine Fresh Gentle Grand Green "
    "Honest Large Late Light Little Local Modern Plain Prime Quick Quiet Rich Rustic Simple Slow Small Smoked "
    "Soft Spiced Sweet Tall Warm Wild Winter Young"
).split()

GOODS = (
    "Almond Apple Barley Basket Bean Berry Blanket Bowl Bread Candle Carrot Cedar Cherry Chair Cider Clay Coffee "
    "Cotton Cream Cup Desk Fern Fig Flour Frame Ginger Glass Grape Herb Honey Jam Lamp Leather Linen Loaf Maple "
    "Melon Mint Mug Oat Onion Paper Pasta Peach Pear Pepper Pie Plate Plum Pumpkin Quilt Rice Rose Rye Salad "
    "Scarf Scone Shelf Soap Soup Squash Stool Sugar Table Tea Thyme Tile Toast Tulip Vase Walnut Wheat Wool"
).split()

FIRST_NAMES = (
    "Ada Amir Anna Ben Carla Chen Dara Elif Emil Erik Fatima Felix Grace Hana Hugo Ines Ivan Jonas Julia Kofi "
    "Lena Leo Lucia Maya Milo Nadia Noah Nora Omar Otto Paula Petra Quinn Ravi Rosa Sara Sofia Tara Theo Tomas "
    "Uma Vera Victor Wanda Yara Yusuf Zoe"
).split()

LAST_NAMES = (
    "Adler Baker Becker Bell Berg Blake Brown Castro Cohen Costa Cruz Diaz Dunn Ellis Evans Fischer Fox Garcia "
    "Gray Haas Hale Hart Ito Jensen Kaya Keller Khan Kim Klein Lang Lopez Marsh Mori Nash Novak Okoro Owens Park "
    "Patel Perez Quist Reed Rossi Sato Singh Stone Tanaka Vega Voss Weber Wolf Wood Young"
).split()

VERBS = (
    "Ask Book Browse Buy Call Compare Find Join Open Order Plan Rent Request Reserve See Send Start Try View Visit"
).split()

OBJECTS = (
    "Catalog Class Course Gift Guide Lesson List Map News Now Offer Online Prices Room Sample Seat Ticket Today "
    "Tour Trial"
).split()

DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()

ROADS = "Avenue Court Drive Road Street Way".split()
