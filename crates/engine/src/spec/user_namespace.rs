//! The user namespace of a pod: which requests have a meaning.

use podwright_cri::v1;

use super::SpecError;

/// Refuses a user namespace that would not be what the pod asked for. The rules are containerd's (`parseUsernsIDs`), and root is
/// mapped: the container's root directory must have an owner.
pub(crate) fn check_user_namespace(config: &v1::PodSandboxConfig) -> Result<(), SpecError> {
    let context = config.linux.as_ref().and_then(|linux| linux.security_context.as_ref());
    let options = context.and_then(|context| context.namespace_options.as_ref());
    let Some(user) = options.and_then(|options| options.userns_options.as_ref()) else { return Ok(()) };
    let refuse = |what: &str| Err(SpecError::Unsupported(format!("a user namespace {what}")));
    match v1::NamespaceMode::try_from(user.mode) {
        Ok(v1::NamespaceMode::Node) if user.uids.is_empty() && user.gids.is_empty() => Ok(()),
        Ok(v1::NamespaceMode::Node) => refuse("of mode NODE with mappings"),
        Ok(v1::NamespaceMode::Pod) => match (user.uids.as_slice(), user.gids.as_slice()) {
            ([uids], [gids]) if is_root_mapped(uids) && is_root_mapped(gids) => Ok(()),
            ([_], [_]) => refuse("in which id 0 is not mapped"),
            _ => refuse("without exactly one mapping of users and one of groups"),
        },
        _ => refuse("of a mode other than POD and NODE"),
    }
}

fn is_root_mapped(mapping: &v1::IdMapping) -> bool {
    mapping.container_id == 0 && mapping.length > 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// First id in the container, and length.
    type Maps<'a> = &'a [(u32, u32)];

    fn checked(mode: v1::NamespaceMode, uids: Maps<'_>, gids: Maps<'_>) -> Result<(), SpecError> {
        let maps = |maps: Maps<'_>| {
            let map = |(container_id, length): &(u32, u32)| v1::IdMapping {
                container_id: *container_id,
                host_id: 100_000,
                length: *length,
            };
            maps.iter().map(map).collect()
        };
        let user = v1::UserNamespace { mode: mode.into(), uids: maps(uids), gids: maps(gids) };
        let options = v1::NamespaceOption { userns_options: Some(user), ..Default::default() };
        let context = v1::LinuxSandboxSecurityContext { namespace_options: Some(options), ..Default::default() };
        let linux = v1::LinuxPodSandboxConfig { security_context: Some(context), ..Default::default() };
        check_user_namespace(&v1::PodSandboxConfig { linux: Some(linux), ..Default::default() })
    }

    #[test]
    fn only_one_mapping_with_root_or_the_namespace_of_the_host_is_accepted() {
        use v1::NamespaceMode::{Container, Node, Pod, Target};
        let root: Maps<'_> = &[(0, 65536)];
        assert_eq!(checked(Node, &[], &[]), Ok(()));
        assert_eq!(checked(Pod, root, root), Ok(()));
        assert_eq!(check_user_namespace(&v1::PodSandboxConfig::default()), Ok(()));
        let refused: [(v1::NamespaceMode, Maps<'_>, Maps<'_>); 9] = [
            (Node, root, root),
            (Pod, &[], &[]),
            (Pod, root, &[]),
            (Pod, &[(0, 10), (10, 10)], root),
            (Pod, &[(1, 10)], root),
            (Pod, root, &[(1, 10)]),
            (Pod, &[(0, 0)], root),
            (Container, root, root),
            (Target, &[], &[]),
        ];
        for (mode, uids, gids) in refused {
            assert!(checked(mode, uids, gids).is_err(), "{mode:?} {uids:?} {gids:?}");
        }
    }
}
