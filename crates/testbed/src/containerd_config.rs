//! The configuration of containerd and CNI: all paths are below the instance's directory.

use std::path::Path;

use serde_json::{Value, json};

use crate::image;

/// The directories and programs of one containerd.
pub(crate) struct Layout<'a> {
    pub(crate) home: &'a Path,
    pub(crate) runc: &'a Path,
    pub(crate) cni_plugins: &'a Path,
}

/// Debian's 1.6 reads version 2, in which CRI is one plugin.
pub(crate) fn version_2(layout: &Layout<'_>) -> String {
    let cri = "plugins.\"io.containerd.grpc.v1.cri\"";
    let body = format!(
        r#"
[{cri}]
  sandbox_image = "{pause}"
  {common}
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[{cri}.cni]
  {cni}
[{cri}.registry]
  config_path = "{home}/certs.d"
"#,
        pause = image::PAUSE,
        common = common(),
        cni = cni(layout, "bin_dir", ""),
        home = layout.home.display(),
    );
    head(layout, 2) + &body + &runtimes(cri, layout)
}

/// 2.x reads version 3, in which images, runtime and the gRPC server are apart. NRI would listen in a shared place.
pub(crate) fn version_3(layout: &Layout<'_>) -> String {
    let (images, runtime) = ("plugins.\"io.containerd.cri.v1.images\"", "plugins.\"io.containerd.cri.v1.runtime\"");
    let body = format!(
        r#"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.grpc.v1.cri"]
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
[{images}]
  use_local_image_pull = true
[{images}.pinned_images]
  sandbox = "{pause}"
[{images}.registry]
  config_path = "{home}/certs.d"
[{runtime}]
  {common}
[{runtime}.cni]
  {cni}
"#,
        pause = image::PAUSE,
        common = common(),
        cni = cni(layout, "bin_dirs", "list"),
        home = layout.home.display(),
    );
    head(layout, 3) + &body + &runtimes(runtime, layout)
}

/// The pods' network. No masquerading: no test traffic leaves the host.
pub(crate) fn network(name: &str, subnet: &str, home: &Path) -> Value {
    json!({
        "cniVersion": "0.4.0",
        "name": name,
        "plugins": [
            {
                "type": "bridge", "bridge": name, "isGateway": true, "ipMasq": false, "hairpinMode": true,
                "ipam": {
                    "type": "host-local", "dataDir": home.join("ipam"),
                    "ranges": [[{"subnet": subnet}]], "routes": [{"dst": "0.0.0.0/0"}],
                },
            },
            {"type": "portmap", "capabilities": {"portMappings": true}, "snat": true},
        ],
    })
}

/// The `hosts.toml` that sends pulls to this registry.
pub(crate) fn hosts_toml(address: &str) -> String {
    format!("server = \"http://{address}\"\n[host.\"http://{address}\"]\n  capabilities = [\"pull\", \"resolve\"]\n")
}

fn head(layout: &Layout<'_>, version: u32) -> String {
    let home = layout.home.display();
    format!(
        r#"version = {version}
root = "{home}/root"
state = "{home}/state"
temp = "{home}/temp"
# Snapshotters that only print errors where their file systems are missing.
disabled_plugins = ["io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing"]
[grpc]
  address = "{home}/c.sock"
[ttrpc]
  address = "{home}/c.sock.ttrpc"
[plugins."io.containerd.internal.v1.opt"]
  path = "{home}/opt"
"#
    )
}

/// An OOM score can't be lowered without CAP_SYS_RESOURCE; network namespaces are in the instance's directory, not in /run/netns.
fn common() -> &'static str {
    "restrict_oom_score_adj = true\n  disable_apparmor = true\n  netns_mounts_under_state_dir = true"
}

fn cni(layout: &Layout<'_>, bin_key: &str, kind: &str) -> String {
    let bin = format!("\"{}\"", layout.cni_plugins.display());
    let bin = if kind == "list" { format!("[{bin}]") } else { bin };
    format!("{bin_key} = {bin}\n  conf_dir = \"{}/cni\"\n  max_conf_num = 1", layout.home.display())
}

fn runtimes(plugin: &str, layout: &Layout<'_>) -> String {
    format!(
        r#"
[{plugin}.containerd]
  default_runtime_name = "runc"
[{plugin}.containerd.runtimes.runc]
  runtime_type = "io.containerd.runc.v2"
[{plugin}.containerd.runtimes.runc.options]
  BinaryName = "{runc}"
  Root = "{home}/runc"
  SystemdCgroup = false
"#,
        runc = layout.runc.display(),
        home = layout.home.display(),
    )
}
