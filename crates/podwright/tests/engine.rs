//! The agent on its own container engine: the suite, the commands and the local API.

mod cli;
mod cni;
mod fixture;
mod images;
mod local_api;
mod shim_kills;
mod stuck;
mod suite;
#[path = "peers/users.rs"]
mod users;

use podwright_testbed::Flavor;

/// The runtime of the agents of this program.
const FLAVOR: Flavor = Flavor::Engine;

all_on!(FLAVOR);

#[test]
fn ten_kills_of_the_agent_or_the_shims() {
    shim_kills::killing_agent_and_shims_at_random_restarts_no_container(10);
}
