//! The sources of static pods: a file or directory, and a URL.

use std::time::Duration;

use podwright_agent::sources::{file as file_source, url as url_source};

use super::PodSources;
use super::diagnostics::Diagnostics;
use super::inputs::{ConfigInputs, absolute, period, text};

/// Default of `fileCheckFrequency` and `httpCheckFrequency`.
const CHECK_FREQUENCY: Duration = Duration::from_secs(20);

pub(super) fn read(inputs: &ConfigInputs<'_>, diagnostics: &mut Diagnostics) -> PodSources {
    let (flags, file) = (inputs.flags, &inputs.file);
    let path = flags.pod_manifest_path.as_deref().map(absolute);
    let path = path.or_else(|| text(&file.static_pod_path).map(|path| inputs.file_path(path)));
    let file_source = path.map(|path| file_source::FileSourceConfig {
        path,
        check_frequency: period(file.file_check_frequency, CHECK_FREQUENCY),
        all_names: flags.manifest_all_names || flags.as_kubelet,
    });
    let url = flags.manifest_url.as_deref().or(text(&file.static_pod_url));
    PodSources { file: file_source, url: url.and_then(|url| read_url(inputs, url, diagnostics)) }
}

fn read_url(
    inputs: &ConfigInputs<'_>,
    url: &str,
    diagnostics: &mut Diagnostics,
) -> Option<url_source::UrlSourceConfig> {
    let file = &inputs.file;
    let from_file = || {
        let headers = file.static_pod_url_header.iter().flatten();
        headers.flat_map(|(name, values)| values.iter().map(|value| (name.clone(), value.clone()))).collect()
    };
    let headers: Vec<(String, String)> = if inputs.flags.manifest_url_header.is_empty() {
        from_file()
    } else {
        match inputs.flags.manifest_url_header.iter().map(|text| parse_headers(text)).collect::<Option<Vec<_>>>() {
            Some(headers) => headers.concat(),
            None => {
                diagnostics.error("--manifest-url-header", "must be NAME:VALUE");
                return None;
            }
        }
    };
    let headers = headers.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    match url_source::UrlSourceConfig::new(url, headers, period(file.http_check_frequency, CHECK_FREQUENCY)) {
        Ok(config) => return Some(config),
        Err(error @ url_source::UrlConfigError::Header(_)) => {
            diagnostics.error("staticPodURLHeader (--manifest-url-header)", error);
        }
        Err(error) => diagnostics.error("staticPodURL (--manifest-url)", error),
    }
    None
}

/// One header, or several separated by commas, as the kubelet accepts them. If a part has no colon, the commas belong to the value
/// of a single header.
fn parse_headers(text: &str) -> Option<Vec<(String, String)>> {
    let parts: Vec<&str> = text.split(',').collect();
    let parts = if parts.iter().all(|part| part.contains(':')) { parts } else { vec![text] };
    let pair = |part: &str| {
        let (name, value) = part.split_once(':')?;
        Some((name.trim().to_owned(), value.trim().to_owned()))
    };
    parts.into_iter().map(pair).collect()
}
