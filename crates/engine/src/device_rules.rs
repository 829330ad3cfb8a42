//! The rules of the device cgroup of a container, from its specification.

use oci_spec::runtime::{LinuxDeviceCgroup, LinuxDeviceType, Spec};
use podwright_linux::cgroup::{DeviceKind, DeviceRule};

/// The rules in their order: the last one that matches counts. A specification without rules allows nothing.
pub(crate) fn of_spec(spec: &Spec) -> Vec<DeviceRule> {
    let resources = spec.linux().as_ref().and_then(|linux| linux.resources().as_ref());
    let rules = resources.and_then(|resources| resources.devices().as_ref());
    match rules {
        Some(rules) if !rules.is_empty() => rules.iter().filter_map(rule).collect(),
        _ => vec![DeviceRule::everything(false)],
    }
}

/// The rules of a pause process: those of a container that asks for nothing.
pub(crate) fn of_pause() -> Vec<DeviceRule> {
    crate::spec::unprivileged_device_rules().iter().filter_map(rule).collect()
}

/// `None`: a rule about what is no device, such as a FIFO.
fn rule(rule: &LinuxDeviceCgroup) -> Option<DeviceRule> {
    let kind = match rule.typ() {
        None | Some(LinuxDeviceType::A) => DeviceKind::All,
        Some(LinuxDeviceType::C | LinuxDeviceType::U) => DeviceKind::Char,
        Some(LinuxDeviceType::B) => DeviceKind::Block,
        Some(LinuxDeviceType::P) => return None,
    };
    // A negative number stands for all of them, as in runc.
    let number = |of: Option<i64>| of.and_then(|number| u32::try_from(number).ok());
    let access = rule.access().as_deref().unwrap_or("rwm");
    Some(DeviceRule {
        allow: rule.allow(),
        kind,
        major: number(rule.major()),
        minor: number(rule.minor()),
        read: access.contains('r'),
        write: access.contains('w'),
        mknod: access.contains('m'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_keep_their_order_and_meaning() {
        let text = r#"{"ociVersion": "1.2.1", "linux": {"resources": {"devices": [
            {"allow": false, "access": "rwm"},
            {"allow": true, "type": "c", "major": 1, "minor": 3, "access": "rw"},
            {"allow": true, "type": "b", "major": 8, "minor": -1, "access": "r"}]}}}"#;
        let rules = of_spec(&serde_json::from_str(text).unwrap());
        assert_eq!(rules[0], DeviceRule::everything(false));
        let null = DeviceRule {
            allow: true,
            kind: DeviceKind::Char,
            major: Some(1),
            minor: Some(3),
            read: true,
            write: true,
            mknod: false,
        };
        assert_eq!(rules[1], null);
        assert_eq!((rules[2].kind, rules[2].minor, rules[2].write), (DeviceKind::Block, None, false));
        let none = serde_json::from_str(r#"{"ociVersion": "1.2.1", "linux": {}}"#).unwrap();
        assert_eq!(of_spec(&none), [DeviceRule::everything(false)]);
    }

    #[test]
    fn a_pause_process_opens_null_and_no_disk() {
        let rules = of_pause();
        assert_eq!(rules[0], DeviceRule::everything(false));
        let null =
            DeviceRule { kind: DeviceKind::Char, major: Some(1), minor: Some(3), ..DeviceRule::everything(true) };
        assert!(rules.contains(&null), "{rules:?}");
        assert!(!rules.iter().any(|r| r.allow && r.kind != DeviceKind::Char && (r.read || r.write)), "{rules:?}");
    }
}
