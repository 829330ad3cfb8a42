//! How flags, file, defaults and the machine become one [`Config`].

use std::collections::BTreeSet;
use std::fmt::Display;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use podwright_agent::sources::{Strictness, file as file_source, url as url_source};
use podwright_agent::{recorder, rotate};
use podwright_core::NodeConfig;
use podwright_core::model::Source;
use podwright_core::quantity::Amount;

use super::file::KubeletFile;
use super::{Capacity, Cgroups, Config, Dirs, Dns, Facts, Images, Logging, Machine, Runtime, Sources};
use crate::run_flags::{LogFormat, RunFlags};

/// Puts the parts together; what is wrong is gathered, so that people see all of it at once.
pub(super) struct Reader<'a> {
    pub(super) flags: &'a RunFlags,
    pub(super) file: KubeletFile,
    pub(super) facts: Facts,
    /// Relative paths in the file start where the file lies.
    pub(super) base: PathBuf,
    pub(super) errors: Vec<String>,
    pub(super) warnings: Vec<String>,
}

impl Reader<'_> {
    /// The whole, or everything that is wrong.
    pub(super) fn read(mut self) -> Result<Config, Vec<String>> {
        for flag in &self.flags.ignored {
            self.warnings.push(format!("{flag}: a flag of the kubelet that does nothing here yet"));
        }
        let sources = self.sources();
        let room = self.room();
        let node = self.node(&sources, &room);
        let config = Config {
            capacity: self.capacity(),
            runtime: self.runtime(),
            dirs: self.dirs(),
            listen: self.listen(),
            cgroups: self.cgroups(&room),
            images: self.images(),
            logs: self.logs(),
            logging: self.logging(),
            dns: self.dns(),
            seccomp_default: self.file.seccomp_default.unwrap_or(false),
            strictness: if self.flags.strict { Strictness::Strict } else { Strictness::Lenient },
            record: self.record(),
            cluster: self.cluster(),
            machine: self.machine(),
            hostname: self.node_name_quietly(),
            node,
            sources,
            warnings: Vec::new(),
        };
        self.swap();
        self.proxies(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
        if !self.errors.is_empty() {
            return Err(self.errors);
        }
        Ok(Config { warnings: self.warnings, ..config })
    }

    fn sources(&mut self) -> Sources {
        let path = self.flags.pod_manifest_path.as_deref().map(absolute);
        let path = path.or_else(|| text(&self.file.static_pod_path).map(|path| self.relative(path)));
        let file = path.map(|path| file_source::Config {
            path,
            check_frequency: period(self.file.file_check_frequency, CHECK_FREQUENCY),
            all_names: self.flags.manifest_all_names || self.flags.as_kubelet,
        });
        let url = self.flags.manifest_url.clone().or_else(|| text(&self.file.static_pod_url).map(ToOwned::to_owned));
        let url = url.and_then(|url| self.url(&url));
        Sources { file, url }
    }

    fn url(&mut self, url: &str) -> Option<url_source::Config> {
        let from_file: Vec<(String, String)> = (self.file.static_pod_url_header.iter().flatten())
            .flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone())))
            .collect();
        let headers = if self.flags.manifest_url_header.is_empty() {
            from_file
        } else {
            match self.flags.manifest_url_header.iter().map(|text| headers(text)).collect::<Result<Vec<_>, _>>() {
                Ok(headers) => headers.concat(),
                Err(error) => return self.wrong("--manifest-url-header", error),
            }
        };
        let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        match url_source::Config::new(url, headers, period(self.file.http_check_frequency, CHECK_FREQUENCY)) {
            Ok(config) => Some(config),
            Err(error @ url_source::ConfigError::Header(_)) => {
                self.wrong("staticPodURLHeader (--manifest-url-header)", error)
            }
            Err(error) => self.wrong("staticPodURL (--manifest-url)", error),
        }
    }

    fn node(&mut self, sources: &Sources, room: &Capacity) -> NodeConfig {
        let usual = NodeConfig::default();
        let mut on = BTreeSet::from([Source::Local]);
        on.extend(sources.file.as_ref().map(|_| Source::File));
        on.extend(sources.url.as_ref().map(|_| Source::Url));
        on.extend(self.flags.kubeconfig.as_ref().map(|_| Source::Api));
        NodeConfig {
            node_name: self.node_name(),
            boot_id: self.facts.boot_id.clone(),
            host_ips: self.addresses(),
            labels: self.labels(),
            sources: on,
            allowed_unsafe_sysctls: self.file.allowed_unsafe_sysctls.clone().unwrap_or_default(),
            app_armor: self.facts.app_armor,
            supplemental_groups_policy: None,
            max_pods: self.whole("maxPods", self.file.max_pods, 110, 0, 100_000),
            allocatable_cpu_millis: room.cpu_millis,
            allocatable_memory: room.memory_beside_huge_pages(),
            allocatable_ephemeral: room.ephemeral,
            allocatable_huge_pages: room.huge_pages.clone(),
            sync_frequency: period(self.file.sync_frequency, Duration::from_secs(60)),
            backoff_max: self.backoff_max(usual.backoff_max),
            runtime_request_timeout: period(self.file.runtime_request_timeout, usual.runtime_request_timeout),
            // Measured: more sandboxes at once than this only take longer together.
            sandbox_parallel: 2 * self.facts.cpus,
        }
    }

    fn node_name(&mut self) -> String {
        let given = self.flags.hostname_override.as_deref();
        let name = given.unwrap_or(&self.facts.hostname).trim().to_lowercase();
        let inner = |c: u8| c.is_ascii_lowercase() || c.is_ascii_digit();
        let parts_fine = name.split('.').all(|part| {
            let ends = part.bytes().next().is_some_and(inner) && part.bytes().next_back().is_some_and(inner);
            ends && part.bytes().all(|c| inner(c) || c == b'-')
        });
        if !parts_fine || name.len() > 253 {
            let hint = if given.is_some() { "" } else { ": give one with --hostname-override" };
            let error = format!("{name:?} can't be a node's name (letters, digits, dashes and dots){hint}");
            self.wrong::<()>("--hostname-override", error);
        }
        name
    }

    /// The node's addresses: one of each family only where two are asked for.
    fn addresses(&mut self) -> Vec<String> {
        let mut parsed = Vec::new();
        for text in &self.flags.node_ip {
            match text.trim().parse::<IpAddr>() {
                Ok(ip) => parsed.push(ip),
                Err(_) => self.errors.push(format!("--node-ip: {text:?} is no address")),
            }
        }
        let families: BTreeSet<bool> = parsed.iter().map(IpAddr::is_ipv4).collect();
        if families.len() < parsed.len() {
            self.errors.push("--node-ip: at most one address of each family".into());
        }
        for ip in &self.facts.elsewhere {
            self.errors.push(format!("--node-ip: no interface of this machine has {ip}"));
        }
        if parsed.len() > 1 && parsed.iter().any(IpAddr::is_unspecified) {
            self.errors.push("--node-ip: of two addresses neither may be 0.0.0.0 or ::".into());
        }
        // An unspecified address asks for one of that family.
        let family = match parsed.first() {
            Some(ip) if ip.is_unspecified() => Some(ip.is_ipv4()),
            Some(_) => return parsed.iter().map(ToString::to_string).collect(),
            None => None,
        };
        if let Ok(named) = self.node_name_quietly().parse::<IpAddr>() {
            return vec![named.to_string()];
        }
        let found = &self.facts.addresses;
        let chosen = found.iter().find(|ip| family.is_none_or(|v4| v4 == ip.is_ipv4())).or(found.first());
        chosen.map(ToString::to_string).into_iter().collect()
    }

    pub(super) fn node_name_quietly(&self) -> String {
        self.flags.hostname_override.as_deref().unwrap_or(&self.facts.hostname).trim().to_lowercase()
    }

    fn backoff_max(&mut self, usual: Duration) -> Duration {
        let given = self.file.crash_loop_back_off.as_ref().and_then(|c| c.max_container_restart_period);
        let given = given.unwrap_or(usual);
        if !(Duration::from_secs(1)..=usual).contains(&given) {
            self.errors.push("crashLoopBackOff.maxContainerRestartPeriod: must be between 1s and 300s".into());
        }
        given
    }

    fn runtime(&mut self) -> Runtime {
        let given = self.flags.container_runtime_endpoint.as_deref();
        let endpoint = given.or(text(&self.file.container_runtime_endpoint)).unwrap_or(ENDPOINT).to_owned();
        let endpoint = self.endpoint("containerRuntimeEndpoint (--container-runtime-endpoint)", &endpoint);
        let given = self.flags.image_service_endpoint.as_deref().or(text(&self.file.image_service_endpoint));
        let image_endpoint = match given.map(ToOwned::to_owned) {
            Some(given) => self.endpoint("imageServiceEndpoint (--image-service-endpoint)", &given),
            None => endpoint.clone(),
        };
        Runtime { endpoint, image_endpoint }
    }

    fn endpoint(&mut self, field: &str, given: &str) -> String {
        if given.starts_with('/') {
            return format!("unix://{given}");
        }
        if !given.strip_prefix("unix://").is_some_and(|path| path.starts_with('/')) {
            self.wrong::<()>(field, format!("{given:?} must be a socket, unix:///path"));
        }
        given.to_owned()
    }

    fn dirs(&self) -> Dirs {
        let pod_logs = text(&self.file.pod_logs_dir).map(|dir| self.relative(dir));
        Dirs {
            root: absolute(self.flags.root_dir()),
            run: absolute(&self.flags.run_dir),
            pod_logs: pod_logs.unwrap_or_else(|| "/var/log/pods".into()),
            container_logs: absolute(&self.flags.container_logs_dir),
        }
    }

    fn listen(&mut self) -> Option<SocketAddr> {
        let port = self.whole("readOnlyPort", self.file.read_only_port, 0, 0, 65_535);
        let address = text(&self.file.address).unwrap_or("0.0.0.0").to_owned();
        let from_file = match address.parse::<IpAddr>() {
            Ok(ip) => (port > 0).then(|| SocketAddr::new(ip, u16::try_from(port).unwrap_or(u16::MAX))),
            Err(_) => self.wrong("address", format!("{address:?} is no address")),
        };
        self.flags.listen.or(from_file)
    }

    fn cgroups(&mut self, room: &Capacity) -> Cgroups {
        let driver = text(&self.file.cgroup_driver).unwrap_or("cgroupfs").to_owned();
        if driver != "cgroupfs" {
            let error = if driver == "systemd" { NO_SLICES.into() } else { format!("{driver:?} must be cgroupfs") };
            self.wrong::<()>("cgroupDriver (--cgroup-driver)", error);
        }
        let root = text(&self.file.cgroup_root).unwrap_or("/").to_owned();
        let root = if root.starts_with('/') { root } else { format!("/{root}") };
        if Path::new(&root).components().any(|part| part == std::path::Component::ParentDir) {
            self.wrong::<()>("cgroupRoot", "must not lead upwards");
        }
        let cpu_period = self.file.cpu_cfs_quota_period.unwrap_or(Duration::from_millis(100));
        if !(Duration::from_millis(1)..=Duration::from_secs(1)).contains(&cpu_period) {
            self.wrong::<()>("cpuCFSQuotaPeriod", "must be between 1ms and 1s");
        }
        Cgroups {
            root,
            per_qos: self.file.cgroups_per_qos.unwrap_or(true),
            node_allocatable: self.node_allocatable(room),
            pids_limit: self.file.pod_pids_limit.filter(|limit| *limit > 0),
            cpu_quota: self.file.cpu_cfs_quota.unwrap_or(true),
            cpu_period,
            single_process_oom_kill: self.file.single_process_oom_kill.unwrap_or(false),
        }
    }

    fn machine(&self) -> Machine {
        Machine {
            huge_page_sizes: self.facts.huge_pages.iter().map(|pages| pages.size).collect(),
            selinux: self.facts.selinux,
            thermal_paths: self.facts.thermal_paths.clone(),
        }
    }

    fn images(&mut self) -> Images {
        let most = self.whole("maxParallelImagePulls", self.file.max_parallel_image_pulls, PULLS, 1, 1000);
        if self.file.serialize_image_pulls == Some(true) && self.file.max_parallel_image_pulls.is_some_and(|n| n > 1) {
            self.wrong::<()>("maxParallelImagePulls", "must not be more than 1 with serializeImagePulls: true");
        }
        let qps = self.whole("registryPullQPS", self.file.registry_pull_qps, 5, 0, 1_000_000);
        let burst = self.whole("registryBurst", self.file.registry_burst, 10, 0, 1_000_000);
        let high = self.whole("imageGCHighThresholdPercent", self.file.image_gc_high_threshold_percent, 85, 0, 100);
        let low = self.whole("imageGCLowThresholdPercent", self.file.image_gc_low_threshold_percent, 80, 0, 100);
        if low >= high {
            self.wrong::<()>("imageGCLowThresholdPercent", "must be below imageGCHighThresholdPercent");
        }
        let min_age = period(self.file.image_minimum_gc_age, Duration::from_secs(120));
        let max_age = self.file.image_maximum_gc_age.filter(|age| !age.is_zero());
        if max_age.is_some_and(|max| max <= min_age) {
            self.wrong::<()>("imageMaximumGCAge", "must be above imageMinimumGCAge");
        }
        Images {
            parallel: if self.file.serialize_image_pulls == Some(true) { 1 } else { most },
            rate: (qps > 0)
                .then(|| (u32::try_from(qps).unwrap_or(u32::MAX), u32::try_from(burst.max(1)).unwrap_or(u32::MAX))),
            gc_high: u8::try_from(high).unwrap_or(100),
            gc_low: u8::try_from(low).unwrap_or(100),
            gc_min_age: min_age,
            gc_max_age: max_age,
        }
    }

    fn logs(&mut self) -> rotate::Config {
        let usual = rotate::Config::default();
        let max_size = match text(&self.file.container_log_max_size).map(str::parse::<Amount>) {
            None => usual.max_size,
            // The Go kubelet's -1: no rotation.
            Some(Ok(amount)) if amount.is_negative() => u64::MAX,
            Some(Ok(amount)) if amount.is_positive() => amount.value().unsigned_abs(),
            Some(Ok(_)) => self.wrong("containerLogMaxSize", "must not be zero").unwrap_or(usual.max_size),
            Some(Err(error)) => self.wrong("containerLogMaxSize", error).unwrap_or(usual.max_size),
        };
        let interval = self.file.container_log_monitor_interval.unwrap_or(usual.interval);
        if interval < Duration::from_secs(3) {
            self.wrong::<()>("containerLogMonitorInterval", "must be at least 3s");
        }
        let max_files = self.whole("containerLogMaxFiles", self.file.container_log_max_files, usual.max_files, 2, 1000);
        rotate::Config { max_size, max_files, interval }
    }

    fn logging(&mut self) -> Logging {
        let file = self.file.logging.clone().unwrap_or_default();
        let format = match text(&file.format) {
            None | Some("text") => LogFormat::Text,
            Some("json") => LogFormat::Json,
            Some(other) => self.wrong("logging.format", format!("{other:?} must be text or json")).unwrap_or_default(),
        };
        let verbosity = self.whole("logging.verbosity", file.verbosity, 0, 0, usize::from(u8::MAX));
        Logging {
            format: self.flags.observability.logging_format.unwrap_or(format),
            verbosity: self.flags.verbosity.unwrap_or(u8::try_from(verbosity).unwrap_or(u8::MAX)),
        }
    }

    fn record(&mut self) -> Option<recorder::Config> {
        let path = absolute(self.flags.observability.record.as_deref()?);
        let size = self.flags.observability.record_max_size.parse::<Amount>();
        match size.map(|size| u64::try_from(size.value())) {
            Ok(Ok(max_size)) if max_size >= RECORD_MIN => Some(recorder::Config { path, max_size }),
            _ => self.wrong("--record-max-size", "must be a size of at least 1Mi, such as 256Mi"),
        }
    }

    fn dns(&mut self) -> Dns {
        let servers = self.file.cluster_dns.clone().unwrap_or_default();
        for server in &servers {
            if server.parse::<IpAddr>().is_err() {
                self.errors.push(format!("clusterDNS: {server:?} is no address"));
            }
        }
        let resolv_conf = match self.file.resolv_conf.as_deref() {
            // Written as empty, it is switched off.
            Some("") => None,
            Some(path) => Some(self.relative(path)),
            None => Some("/etc/resolv.conf".into()),
        };
        Dns { servers, domain: self.file.cluster_domain.clone().unwrap_or_default(), resolv_conf }
    }

    fn swap(&mut self) {
        if self.file.fail_swap_on.unwrap_or(true) && !self.facts.swaps.is_empty() {
            let swaps = self.facts.swaps.join(", ");
            let error = format!(
                "swap is on ({swaps}): limits of memory would not hold. Switch it off, or write failSwapOn: false"
            );
            self.wrong::<()>("failSwapOn", error);
        }
    }

    /// A whole number within bounds; the default where none is given.
    pub(super) fn whole(&mut self, field: &str, given: Option<i64>, usual: usize, least: usize, most: usize) -> usize {
        let Some(given) = given else { return usual };
        match usize::try_from(given) {
            Ok(given) if (least..=most).contains(&given) => given,
            _ => self.wrong(field, format!("must be between {least} and {most}, not {given}")).unwrap_or(usual),
        }
    }

    fn wrong<T>(&mut self, field: &str, error: impl Display) -> Option<T> {
        self.errors.push(format!("{field}: {error}"));
        None
    }

    fn relative(&self, path: &str) -> PathBuf {
        absolute(&self.base.join(path))
    }
}

/// The text, if there is any: in the Go types an empty one is none.
pub(super) fn text(field: &Option<String>) -> Option<&str> {
    field.as_deref().filter(|text| !text.is_empty())
}

/// A period; zero means the default, as everywhere in the Go types.
fn period(given: Option<Duration>, usual: Duration) -> Duration {
    given.filter(|given| !given.is_zero()).unwrap_or(usual)
}

pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

/// One header, or several with commas between, as the kubelet takes them. A comma inside of a value is no such comma.
fn headers(text: &str) -> Result<Vec<(String, String)>, String> {
    let pieces: Vec<&str> = text.split(',').collect();
    let pieces = if pieces.iter().all(|piece| piece.contains(':')) { pieces } else { vec![text] };
    let pair = |piece: &str| {
        let (name, value) = piece.split_once(':').ok_or("must be NAME:VALUE")?;
        Ok((name.trim().to_owned(), value.trim().to_owned()))
    };
    pieces.into_iter().map(pair).collect()
}

/// What to do without the other driver.
const NO_SLICES: &str = "systemd is not there yet, no slices are made. Write cgroupfs, or leave the field out, and set the \
    container runtime to cgroupfs too (containerd: SystemdCgroup = false; CRI-O: cgroup_manager = \"cgroupfs\")";
/// `fileCheckFrequency` and `httpCheckFrequency`.
const CHECK_FREQUENCY: Duration = Duration::from_secs(20);
/// Where containerd listens.
const ENDPOINT: &str = "unix:///run/containerd/containerd.sock";
/// The Go kubelet pulls one image after another unless told otherwise; a hung registry then holds up all pods.
const PULLS: usize = 5;
/// A recording of less could not hold the state of many pods.
const RECORD_MIN: u64 = 1 << 20;
