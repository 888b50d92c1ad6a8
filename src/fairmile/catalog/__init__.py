"""Cards, the catalogs that hold them, search, match, FAIR score and foreign formats."""

OWN_IDS = "https://w3id.org/fairmile/"  # below it stand ids of cards, and never bytes
