//! Saves and restores the settings of the host that the Go kubelet changes.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

/// Sysctls that the Go kubelet changes at its start.
const SYSCTLS: [&str; 6] = [
    "vm/overcommit_memory",
    "vm/panic_on_oom",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
];

/// The Go kubelet's directory of device plugins, whatever its root directory is.
const DEVICE_PLUGINS: &str = "/var/lib/kubelet/device-plugins";

/// The file of an instance with the host's settings before the first kubelet.
const HOST_SETTINGS: &str = "host-before-kubelet";

/// Saves the host's settings before the first kubelet of an instance.
pub(crate) fn save_host_settings(instance: &Path) -> Result<()> {
    let file = instance.join(HOST_SETTINGS);
    if file.exists() {
        return Ok(());
    }
    let sysctl = |name: &str| Some((name.to_owned(), fs::read_to_string(Path::new("/proc/sys").join(name)).ok()?));
    let sysctls: BTreeMap<String, String> = SYSCTLS.into_iter().filter_map(sysctl).collect();
    let before = json!({"sysctls": sysctls, "had_device_plugins": Path::new(DEVICE_PLUGINS).exists()});
    Ok(fs::write(file, before.to_string())?)
}

/// Restores the host's settings; does nothing if no kubelet was started in this instance.
pub(crate) fn restore_host(instance: &Path) {
    let Ok(saved) = fs::read_to_string(instance.join(HOST_SETTINGS)) else { return };
    let before: Value = serde_json::from_str(&saved).unwrap_or_default();
    for (name, value) in before["sysctls"].as_object().into_iter().flatten() {
        let (path, value) = (Path::new("/proc/sys").join(name), value.as_str().unwrap_or_default());
        if fs::read_to_string(&path).is_ok_and(|now| now != value) {
            let _ = fs::write(path, value);
        }
    }
    if before["had_device_plugins"] == false {
        let _ = fs::remove_dir_all(DEVICE_PLUGINS);
    }
    // Fails unless they are empty, that is, unused by others.
    for dir in ["/var/lib/kubelet", "/var/log/containers"] {
        let _ = fs::remove_dir(dir);
    }
}
