//! The agent on Debian's containerd 1.6, which has no event stream.

mod suite;

all_on!(podwright_testbed::Flavor::Debian16);
