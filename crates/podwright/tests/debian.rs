//! The agent on Debian's containerd 1.6, which has no event stream: the suite, the commands and the local API.

mod cli;
mod fixture;
mod local_api;
mod suite;

all_on!(podwright_testbed::Flavor::Debian16);
