//! The agent on containerd 2.x, which has an event stream.

#[path = "peers/kubectl.rs"]
mod kubectl;
mod proxied_runtime;
#[expect(
    dead_code,
    reason = "the suite is shared; the tests of images, which slow a registry down, run on the engine only"
)]
mod suite;
#[path = "peers/users.rs"]
mod users;

use podwright_testbed::Flavor;

/// The runtime of the agents of this program.
const FLAVOR: Flavor = Flavor::V2;

all_on!(FLAVOR);
