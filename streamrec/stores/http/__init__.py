"""The store of http(s), and the ranged GETs that S3 and GCS share."""
