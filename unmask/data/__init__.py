"""From files to rows: documents, preparation, shards, packing."""
