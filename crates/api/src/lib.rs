//! The API server seen from the node: who we are to it, the pods it wants here, what we tell it, what it keeps for pods.
