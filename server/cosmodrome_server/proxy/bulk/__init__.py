"""`cosmodrome.v1.Bulk`: what the data pipeline asks for; `table.BULK` lists it."""
