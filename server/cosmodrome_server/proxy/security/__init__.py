"""Who calls, and what they may: signatures, users, policies, and the guard that asks them."""
