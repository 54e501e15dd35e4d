"""The three roads from a broker to Arrow batches, behind one seam (`base.TopicReader`)."""
