"""The web page of `tfcluster ui`: a small server for this user's browser on this machine."""
