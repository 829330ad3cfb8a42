//! The process: command, environment, working directory, user, and its rights.

use oci_spec::runtime::{Process, ProcessBuilder, UserBuilder};
use podwright_cri::v1;

use super::{Security, SpecError, SpecInputs, check_text, security};

/// The user of a container as requested. Names are resolved in the image.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestedUser {
    /// `user[:group]`, each a name or a number; empty: root.
    pub user: String,
    /// Groups that the process has in any case.
    pub supplemental_groups: Vec<u32>,
    /// The groups of `/etc/group` are not added.
    pub strict_groups: bool,
}

pub(super) fn process(inputs: &SpecInputs<'_>, security: Security<'_>) -> Result<(Process, RequestedUser), SpecError> {
    let (config, image) = (inputs.config, inputs.image);
    let user = user(inputs, security.context)?;
    let cwd = [config.working_dir.as_str(), image.working_dir.as_str(), "/"];
    let cwd = cwd.into_iter().find(|dir| !dir.is_empty()).unwrap_or("/");
    check_text("working_dir", cwd)?;
    if !cwd.starts_with('/') {
        return Err(SpecError::Text { field: "working_dir", value: cwd.into(), problem: "is not absolute" });
    }
    let numbers = |name: &str| name.parse::<u32>().unwrap_or(0);
    let (uid, gid) = user.user.split_once(':').unwrap_or((&user.user, ""));
    let oci_user = UserBuilder::default()
        .uid(numbers(uid))
        .gid(numbers(gid))
        .additional_gids(user.supplemental_groups.clone())
        .build()
        .expect("complete");
    let mut process = ProcessBuilder::default()
        .terminal(config.tty)
        .user(oci_user)
        .args(args(inputs)?)
        .env(env(inputs)?)
        .cwd(cwd)
        .capabilities(security::capabilities(inputs, security.context)?)
        .no_new_privileges(security.context.no_new_privs)
        .build()
        .expect("complete");
    process.set_rlimits(None);
    process.set_apparmor_profile(security::apparmor(security.context)?);
    process.set_selinux_label(security::selinux(security.context)?);
    process.set_oom_score_adj(oom_score_adj(inputs)?);
    Ok((process, user))
}

/// containerd's `WithProcessArgs`: the command of the pod replaces the entrypoint, its arguments replace the image's command, and a
/// command without arguments replaces both.
fn args(inputs: &SpecInputs<'_>) -> Result<Vec<String>, SpecError> {
    let (mut command, mut arguments) = (inputs.config.command.clone(), inputs.config.args.clone());
    if command.is_empty() {
        if arguments.is_empty() {
            arguments.clone_from(&inputs.image.cmd);
        }
        command.clone_from(&inputs.image.entrypoint);
    }
    command.append(&mut arguments);
    if command.first().is_none_or(String::is_empty) {
        return Err(SpecError::NoCommand);
    }
    command.iter().try_for_each(|arg| check_text("command", arg))?;
    Ok(command)
}

/// The environment of the image, then that of the pod; of one name the last value counts, at the place of the first.
fn env(inputs: &SpecInputs<'_>) -> Result<Vec<String>, SpecError> {
    let mut all: Vec<(String, String)> = vec![];
    let mut places = std::collections::BTreeMap::new();
    let mut set = |name: &str, value: &str| {
        let place = *places.entry(name.to_owned()).or_insert(all.len());
        match all.get_mut(place) {
            Some(entry) => value.clone_into(&mut entry.1),
            None => all.push((name.to_owned(), value.to_owned())),
        }
    };
    set("PATH", DEFAULT_PATH);
    let hostname = &inputs.sandbox.hostname;
    set("HOSTNAME", if hostname.is_empty() { &inputs.host.hostname } else { hostname });
    if inputs.config.tty {
        set("TERM", "xterm");
    }
    for entry in &inputs.image.env {
        // An entry of an image without `=` unsets nothing and sets nothing.
        if let Some((name, value)) = entry.split_once('=') {
            set(name, value);
        }
    }
    for v1::KeyValue { key, value } in &inputs.config.envs {
        let text = |problem| SpecError::Text { field: "environment variable", value: key.clone(), problem };
        if key.is_empty() || key.contains('=') {
            return Err(text("is not a valid name"));
        }
        set(key, std::str::from_utf8(value).map_err(|_| text("has a value that is not UTF-8"))?);
    }
    let all: Vec<String> = all.into_iter().map(|(name, value)| format!("{name}={value}")).collect();
    all.iter().try_for_each(|entry| check_text("environment variable", entry))?;
    Ok(all)
}

/// `run_as_user`, else `run_as_username`, else the image's; the group of the image does not follow another user.
fn user(inputs: &SpecInputs<'_>, context: &v1::LinuxContainerSecurityContext) -> Result<RequestedUser, SpecError> {
    let id = |field: &'static str, value: i64| u32::try_from(value).map_err(|_| SpecError::Number { field, value });
    let user = match (&context.run_as_user, context.run_as_username.as_str()) {
        (Some(uid), _) => Some(id("run_as_user", uid.value)?.to_string()),
        (None, "") => None,
        (None, name) => Some(name.to_owned()),
    };
    let mut user = user.unwrap_or_else(|| inputs.image.user.clone());
    if let Some(group) = &context.run_as_group {
        if user.is_empty() {
            return Err(SpecError::Unsupported("run_as_group without a user".into()));
        }
        let name = user.split(':').next().unwrap_or_default();
        user = format!("{name}:{}", id("run_as_group", group.value)?);
    }
    check_text("user", &user)?;
    let groups = context.supplemental_groups.iter().map(|group| id("supplemental_groups", *group));
    let strict = v1::SupplementalGroupsPolicy::Strict as i32;
    Ok(RequestedUser {
        user,
        supplemental_groups: groups.collect::<Result<_, _>>()?,
        strict_groups: context.supplemental_groups_policy == strict,
    })
}

fn oom_score_adj(inputs: &SpecInputs<'_>) -> Result<Option<i32>, SpecError> {
    let Some(resources) = inputs.config.linux.as_ref().and_then(|l| l.resources.as_ref()) else { return Ok(None) };
    let value = resources.oom_score_adj;
    let adj = i32::try_from(value).ok().filter(|adj| (-1000..=1000).contains(adj));
    adj.map(Some).ok_or(SpecError::Number { field: "oom_score_adj", value })
}

/// containerd's default; in front, so that image and pod can replace it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
