//! Metrics of the agent's own process, from /proc.

/// The standard `process_*` metrics of Prometheus clients.
pub(super) fn text() -> String {
    let page = rustix::param::page_size() as u64;
    let ticks = rustix::param::clock_ticks_per_second();
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    let mut memory = statm.split_whitespace().map_while(|field| field.parse::<u64>().ok()).map(|pages| pages * page);
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The command name in parentheses may contain spaces; utime and stime follow it.
    let times: Vec<u64> = stat
        .rsplit(") ")
        .next()
        .into_iter()
        .flat_map(str::split_whitespace)
        .skip(11)
        .take(2)
        .filter_map(|field| field.parse().ok())
        .collect();
    let files = std::fs::read_dir("/proc/self/fd").map_or(0, Iterator::count);
    let (virtual_size, resident) = (memory.next().unwrap_or(0), memory.next().unwrap_or(0));
    let cpu = times.iter().sum::<u64>() as f64 / ticks as f64;
    let start = start_time().map_or_else(String::new, |seconds| seconds.to_string());
    let mut text = String::new();
    for (name, kind, help, value) in [
        ("process_cpu_seconds_total", "counter", "Total user and system CPU time.", cpu.to_string()),
        ("process_open_fds", "gauge", "Open file descriptors.", files.to_string()),
        ("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", start),
        ("process_resident_memory_bytes", "gauge", "Resident memory size.", resident.to_string()),
        ("process_virtual_memory_bytes", "gauge", "Virtual memory size.", virtual_size.to_string()),
    ] {
        if value.is_empty() {
            continue;
        }
        text.push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}\n"));
    }
    text
}

/// `process_start_time_seconds` alone, which pages of metrics without the others have.
pub(super) fn start_time_text() -> String {
    let Some(seconds) = start_time() else { return String::new() };
    let name = "process_start_time_seconds";
    let help = "Start time of the process since unix epoch in seconds.";
    format!("# HELP {name} {help}\n# TYPE {name} gauge\n{name} {seconds}\n")
}

/// Seconds since 1970, from the process's start time after boot.
fn start_time() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let ticks: u64 = stat.rsplit(") ").next()?.split_whitespace().nth(19)?.parse().ok()?;
    let after_boot = ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    let age = podwright_linux::clock::boot_time().as_secs_f64() - after_boot;
    let now = jiff::Timestamp::now().as_millisecond() as f64 / 1e3;
    Some(((now - age) * 100.0).round() / 100.0)
}
