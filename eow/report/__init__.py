"""What people look at: figures and the report page, made from the files of finished runs."""
