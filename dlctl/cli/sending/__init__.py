"""`dlctl submit`: one training or many, once each."""
