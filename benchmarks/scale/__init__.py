"""What happens to cost, memory and time when there is much of something."""
