//! A file system that hangs: a FUSE mount whose server reads no request.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

/// Every access to it hangs until this is dropped.
#[derive(Debug)]
pub struct HungMount {
    server: Option<File>,
    point: PathBuf,
}

impl HungMount {
    /// Mounts it; the directory is created if it is missing.
    pub fn new(point: &Path) -> Result<Self> {
        fs::create_dir_all(point).with_context(|| format!("create {}", point.display()))?;
        let server = File::options().read(true).write(true).open("/dev/fuse").context("open /dev/fuse")?;
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options)?;
        mount("hung", point, "fuse", MountFlags::empty(), options.as_c_str())
            .with_context(|| format!("mount on {}", point.display()))?;
        Ok(Self { server: Some(server), point: point.to_owned() })
    }

    /// The mount point. Even `stat` on it hangs.
    pub fn point(&self) -> &Path {
        &self.point
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        // Without its server the kernel fails every request, also pending ones.
        self.server = None;
        if let Err(error) = unmount(&self.point, UnmountFlags::DETACH) {
            // The tested program may have detached it, as it should.
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
    fn an_access_hangs_until_the_mount_is_dropped() {
        let scratch = Scratch::new().expect("a scratch");
        let hung = HungMount::new(&scratch.path().join("hung")).expect("mounted");
        let (sender, result) = mpsc::channel();
        let path = hung.point().join("x");
        thread::spawn(move || sender.send(fs::metadata(path).is_ok()));
        assert!(result.recv_timeout(Duration::from_millis(300)).is_err(), "it does not hang");
        drop(hung);
        assert_eq!(result.recv_timeout(Duration::from_secs(10)), Ok(false));
    }
}
