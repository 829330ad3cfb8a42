//! A file system that never answers: a FUSE mount whose server reads no request.

use super::*;
use std::ffi::CString;
use std::os::fd::AsRawFd;

use rustix::mount::{MountFlags, mount as mount_syscall};

/// A mount on which every access hangs until it is dropped.
pub(crate) struct HungMount {
    server: Option<fs::File>,
    point: PathBuf,
}

impl HungMount {
    pub(crate) fn new(point: &Path) -> Self {
        fs::create_dir_all(point).unwrap();
        let server = fs::File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        let options = CString::new(options).unwrap();
        mount_syscall("hung", point, "fuse", MountFlags::empty(), options.as_c_str()).unwrap();
        Self { server: Some(server), point: point.into() }
    }
}

impl Drop for HungMount {
    fn drop(&mut self) {
        // Without its server the kernel fails every request, also those under way.
        self.server = None;
        let _ = mount::detach(&self.point);
    }
}

#[tokio::test]
async fn a_hung_mount_in_a_pod_is_detached_without_waiting_for_it() {
    let node = HostFixture::new();
    let affected = pod(json!([{"name": "data", "emptyDir": {}}]));
    node.set_up(&affected, &["data"]).await;
    let point = volume_host_path(node.host.paths(), &affected, "data").unwrap().join("dead");
    let hung = HungMount::new(&point);
    // Verify that it hangs.
    let proof = point.clone();
    let result = node.host.io.pool.run("proof", Duration::from_millis(200), move || fs::metadata(&proof).is_ok()).await;
    assert!(matches!(result, Err(PoolError::Timeout { .. })), "{result:?}");

    let begun = Instant::now();
    assert!(node.host.dirs().remove("u1", LIMIT).await.is_err(), "not while it is mounted");
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    node.host.dirs().remove("u1", LIMIT).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(15), "{:?}", begun.elapsed());
    assert_eq!(node.mounts(), 0);
    drop(hung);
}

#[tokio::test]
async fn a_hung_host_path_delays_no_other_pod() {
    let node = HostFixture::new();
    let hung = HungMount::new(&node.at("dead"));
    let path = node.at("dead/data");
    let affected = pod(json!([{"name": "x", "hostPath": {"path": path, "type": "Directory"}}]));
    let short = Duration::from_millis(100);
    for _ in 0..2 {
        let error = node.host.volumes().mount(&affected, "x", short).await.unwrap_err();
        assert!(error.in_doubt() && error.reason() == "FailedMount", "{error:?}");
    }
    let begun = Instant::now();
    let error = node.host.volumes().mount(&affected, "x", LIMIT).await.unwrap_err();
    assert!(!error.in_doubt() && begun.elapsed() < Duration::from_secs(5), "refused at once: {error:?}");
    assert!(error.message().contains("hangs"), "{error}");

    let other = pod(json!([{"name": "data", "emptyDir": {}},
        {"name": "h", "hostPath": {"path": node.at("fine"), "type": "DirectoryOrCreate"}}]));
    let begun = Instant::now();
    node.set_up(&other, &["data", "h"]).await;
    node.prepare(&other, 0, &[(0, "h", "sub")]).await.unwrap();
    node.host.volumes().remove("u1", LIMIT).await.unwrap();
    assert!(begun.elapsed() < Duration::from_secs(5));

    assert_eq!(node.host.io.pool.stuck(), 2);
    drop(hung);
    for _ in 0..1000 {
        if node.host.io.pool.stuck() == 0 {
            return;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    panic!("the threads did not come back");
}
