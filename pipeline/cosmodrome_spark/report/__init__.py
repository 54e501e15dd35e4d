"""Reports as one HTML page: tables and plots, no script, nothing loaded from elsewhere."""
