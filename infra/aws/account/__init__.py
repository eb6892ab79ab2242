"""What an AWS account needs for cloudtune: looked at, made, taken away again."""
