//! A file system that never answers: a FUSE mount whose server reads no request.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Hangs everyone who asks it something, until it is dropped.
#[derive(Debug)]
pub struct HungMount {
    server: Option<File>,
    point: PathBuf,
}

impl HungMount {
    /// Mount it; the directory is made if it is missing.
    pub fn new(point: &Path) -> Result<Self> {
        fs::create_dir_all(point).with_context(|| format!("create {}", point.display()))?;
        let server = File::options().read(true).write(true).open("/dev/fuse").context("open /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options)?;
        mount("hung", point, "fuse", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("mount on {}", point.display()))?;
        Ok(Self { server: Some(server), point: point.to_owned() })
    }

    /// Where it is mounted. Nobody should look what is there.
    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        // Without its server the kernel fails every request, also those under way.
        self.server = None;
        if let Err(error) = unmount(&self.point, UnmountFlags::DETACH) {
            // Whoever was tested may have detached it, as it should.
            eprintln!("testbed: unmount {}: {error}", self.point.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::Scratch;

    #[test]
    fn who_asks_waits_until_it_is_gone() {
        let scratch = Scratch::new().expect("a scratch");
        let hung = HungMount::new(&scratch.path().join("hung")).expect("mounted");
        let (answer, answered) = mpsc::channel();
        let asked = hung.point().join("x");
        thread::spawn(move || answer.send(fs::metadata(asked).is_ok()));
        assert!(answered.recv_timeout(Duration::from_millis(300)).is_err(), "it answers");
        drop(hung);
        assert_eq!(answered.recv_timeout(Duration::from_secs(10)), Ok(false));
    }
}
