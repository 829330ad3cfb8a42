//! The session keyring of this process.

// keyctl has no wrapper at all.
#![allow(unsafe_code)]

use std::ffi::CStr;
use std::io;

/// Leaves the inherited session keyring for a new one of this name, so that keys of the host are not visible to the program that
/// is executed next. `false`: the kernel has no keyrings.
pub fn join_new_session(name: &CStr) -> io::Result<bool> {
    // SAFETY: the name is NUL-terminated and lives until the call returns.
    match unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, name.as_ptr()) } {
        -1 => match io::Error::last_os_error() {
            e if e.raw_os_error() == Some(libc::ENOSYS) => Ok(false),
            e => Err(e),
        },
        _ => Ok(true),
    }
}

const KEYCTL_JOIN_SESSION_KEYRING: libc::c_long = 1;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_gets_a_keyring_of_its_own() {
        // In a thread: the keyring is part of its credentials only.
        let joined = std::thread::spawn(|| join_new_session(c"_ses.test")).join().unwrap();
        joined.unwrap();
    }
}
