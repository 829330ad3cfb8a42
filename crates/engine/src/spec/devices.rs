//! Device nodes and the rules of the device cgroup.

use oci_spec::runtime::{
    LinuxDevice, LinuxDeviceBuilder, LinuxDeviceCgroup, LinuxDeviceCgroupBuilder, LinuxDeviceType,
};

use super::{Security, SpecError, SpecInputs};

/// A device of the host, as the driver found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostDevice {
    /// On the host.
    pub path: String,
    /// A block device; otherwise a character device.
    pub block: bool,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permission bits.
    pub mode: u32,
    /// Of the node on the host; the container's node gets the same.
    pub uid: u32,
    /// As `uid`.
    pub gid: u32,
}

/// The devices of the request, and what may be accessed. A privileged container has all devices of the host.
pub(super) fn devices(
    inputs: &SpecInputs<'_>,
    security: Security<'_>,
) -> Result<(Vec<LinuxDevice>, Vec<LinuxDeviceCgroup>), SpecError> {
    if let Some(device) = inputs.config.cdi_devices.first() {
        return Err(SpecError::Unsupported(format!("CDI device {:?}", device.name)));
    }
    if security.context.privileged {
        let all = inputs.devices.iter().map(|device| node(device, &device.path)).collect();
        return Ok((all, vec![rule(true, LinuxDeviceType::A, None, None, "rwm")]));
    }
    let (mut nodes, mut rules) = (vec![], unprivileged_device_rules());
    for asked in &inputs.config.devices {
        let host = asked.host_path.trim_end_matches('/');
        let inside = if asked.container_path.is_empty() { host } else { asked.container_path.trim_end_matches('/') };
        if !inside.starts_with('/') || inside.split('/').any(|part| part == "..") {
            let problem = "is not an absolute path without ..";
            return Err(SpecError::Text { field: "device container_path", value: inside.into(), problem });
        }
        let access = access(&asked.permissions)?;
        let before = nodes.len();
        for device in inputs.devices {
            // A directory stands for the devices in it.
            let Some(below) = device.path.strip_prefix(host).filter(|rest| rest.is_empty() || rest.starts_with('/'))
            else {
                continue;
            };
            nodes.push(node(device, &format!("{inside}{below}")));
            rules.push(rule(true, kind(device), Some(device.major.into()), Some(device.minor.into()), &access));
        }
        if nodes.len() == before {
            return Err(SpecError::NoDevice(asked.host_path.clone()));
        }
    }
    Ok((nodes, rules))
}

/// The rules of a container without devices of its own.
pub(crate) fn unprivileged_device_rules() -> Vec<LinuxDeviceCgroup> {
    let mut rules = vec![rule(false, LinuxDeviceType::A, None, None, "rwm")];
    rules.extend(default_rules());
    rules
}

/// What every container may access (`oci.WithDefaultUnixDevices` of containerd): any node may be made, and null, zero, full, random,
/// urandom, tty, console, ptmx and the terminals are open.
fn default_rules() -> Vec<LinuxDeviceCgroup> {
    let mut rules =
        vec![rule(true, LinuxDeviceType::C, None, None, "m"), rule(true, LinuxDeviceType::B, None, None, "m")];
    let open = [(1, 3), (1, 5), (1, 7), (1, 8), (1, 9), (5, 0), (5, 1), (5, 2)];
    rules.extend(open.map(|(major, minor)| rule(true, LinuxDeviceType::C, Some(major), Some(minor), "rwm")));
    rules.push(rule(true, LinuxDeviceType::C, Some(136), None, "rwm"));
    rules
}

fn access(permissions: &str) -> Result<String, SpecError> {
    let problem = "may only have r, w and m";
    match permissions {
        "" => Ok("rwm".into()),
        some if some.chars().all(|c| "rwm".contains(c)) => Ok(some.into()),
        other => Err(SpecError::Text { field: "device permissions", value: other.into(), problem }),
    }
}

fn kind(device: &HostDevice) -> LinuxDeviceType {
    if device.block { LinuxDeviceType::B } else { LinuxDeviceType::C }
}

fn node(device: &HostDevice, path: &str) -> LinuxDevice {
    let builder = LinuxDeviceBuilder::default().path(path).typ(kind(device)).major(device.major).minor(device.minor);
    builder.file_mode(device.mode).uid(device.uid).gid(device.gid).build().expect("complete")
}

fn rule(allow: bool, typ: LinuxDeviceType, major: Option<i64>, minor: Option<i64>, access: &str) -> LinuxDeviceCgroup {
    let mut rule = LinuxDeviceCgroupBuilder::default().allow(allow).typ(typ).access(access).build().expect("complete");
    rule.set_major(major);
    rule.set_minor(minor);
    rule
}
