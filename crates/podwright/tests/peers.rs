//! The agent on containerd 2.x, which has an event stream.

mod suite;
#[path = "peers/users.rs"]
mod users;

all_on!(podwright_testbed::Flavor::V2);
