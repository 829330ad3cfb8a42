//! Entry points for the fuzz targets in `fuzz/`, for what is not public. Each does what the reader of such bytes does before it acts.

use std::fmt::Debug;
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

use podwright_linux::scm;
use prost::Message;

use crate::client::ShimClient;
use crate::plan::{ExecPlan, LaunchPlan, SetupPlan};
use crate::protocol::{ForkReply, ForkRequest, Request, decode, encode};

pub use crate::run_files::read_exit_record;

/// A packet to a shim or the zygote.
pub fn request(bytes: &[u8]) {
    round_trip::<Request>(bytes);
    round_trip::<ForkRequest>(bytes);
    round_trip::<ForkReply>(bytes);
}

/// A plan, as the launcher reads it.
pub fn plan(bytes: &[u8]) {
    round_trip::<SetupPlan>(bytes);
    round_trip::<LaunchPlan>(bytes);
    round_trip::<ExecPlan>(bytes);
}

/// A packet to the agent, with this many descriptors.
pub fn packet(bytes: &[u8], descriptors: usize) {
    let (shim, agent) = scm::packet_pair().expect("a socket");
    let null = File::open("/dev/null").expect("every host has it");
    let fds: Vec<BorrowedFd<'_>> = (0..descriptors).map(|_| null.as_fd()).collect();
    // An empty packet looks like the end.
    if bytes.is_empty() || scm::send(&shim, bytes, &fds).is_err() {
        return;
    }
    drop(shim);
    let mut client = ShimClient::from_socket(agent).expect("a socket of our own");
    let _ = client.receive();
}

/// What was read is written as the same.
fn round_trip<M: Message + Default + PartialEq + Debug>(bytes: &[u8]) {
    let Ok(message) = decode::<M>(bytes) else { return };
    assert_eq!(decode::<M>(&encode(&message)).ok().as_ref(), Some(&message));
}
