//! The settings of extenders, from a KubeSchedulerConfiguration.

use std::{collections::HashSet, fmt, path::PathBuf, sync::Arc, time::Duration};

use api_config::scheduler::{ExtenderTls, SchedulerExtender};
use api_meta::{ErrorList, FieldError, GoDuration, Path, validation};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use client::{ClientTls, HttpTransport, TlsError, TlsMaterial};
use http::Uri;
use sched_core::Sym;
use serde_json::{Value, json};

/// Upstream's default for the duration of a call.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The authorities of this machine.
const SYSTEM_AUTHORITIES: &str = "/etc/ssl/certs/ca-certificates.crt";

/// A program beside the scheduler that filters and scores nodes, chooses victims or binds Pods.
pub struct Extender {
    /// The part that the core knows.
    pub(crate) core: sched_core::Extender,
    /// The URL prefix without a slash at its end.
    url: String,
    /// The path of the URL prefix.
    pub(super) path: String,
    pub(super) filter_verb: String,
    pub(super) prioritize_verb: String,
    pub(super) preempt_verb: String,
    pub(super) bind_verb: String,
    pub(super) weight: i64,
    pub(super) timeout: Duration,
    /// `true` if the extender needs only the names of nodes.
    pub(super) caches_nodes: bool,
    /// `true` if Pods are scheduled without the extender while it fails.
    pub(super) ignorable: bool,
    pub(super) transport: HttpTransport,
}

impl fmt::Debug for Extender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.url)
    }
}

impl Extender {
    /// Returns the URL prefix, by which messages name the extender.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Returns the effective settings, by the field names of KubeSchedulerConfiguration.
    pub(crate) fn configz(&self) -> Value {
        json!({"URLPrefix": self.url, "FilterVerb": self.filter_verb, "PreemptVerb": self.preempt_verb,
            "PrioritizeVerb": self.prioritize_verb, "Weight": self.weight, "BindVerb": self.bind_verb,
            "HTTPTimeout": GoDuration::from(self.timeout), "NodeCacheCapable": self.caches_nodes,
            "Ignorable": self.ignorable})
    }

    pub(super) fn binds(&self) -> bool {
        !self.bind_verb.is_empty()
    }
}

/// The extenders of a configuration and the resources that the scheduler leaves to them.
#[derive(Debug, Default)]
pub(crate) struct Compiled {
    /// The extenders in the order of calls: those that may be ignored are last.
    pub(crate) extenders: Vec<Arc<Extender>>,
    /// The names of resources that plugins do not check.
    pub(crate) ignored_resources: Vec<Box<str>>,
}

/// Compiles extenders. Invalid settings are added to `errors`.
pub(crate) fn compile(sources: &[SchedulerExtender], errors: &mut ErrorList) -> Compiled {
    let path = Path::new("extenders");
    let mut out = Compiled::default();
    let mut resources = HashSet::new();
    for (i, source) in sources.iter().enumerate() {
        let path = path.index(i);
        for (j, resource) in source.managed_resources.iter().enumerate() {
            let path = path.child("managedResources").index(j).child("name");
            check_resource(&resource.name, &path, errors);
            if !resources.insert(&*resource.name) {
                let detail = "duplicate extender managed resource name";
                errors.push(FieldError::invalid(&path, &*resource.name, detail));
            }
            if resource.ignored_by_scheduler {
                out.ignored_resources.push(resource.name.as_str().into());
            }
        }
        out.extenders.extend(extender(source, &path, errors).map(Arc::new));
    }
    let binders = sources.iter().filter(|source| !source.bind_verb.is_empty()).count();
    if binders > 1 {
        let found = format!("found {binders} extenders implementing bind");
        errors.push(FieldError::invalid(&path, found, "only one extender can implement bind"));
    }
    out.extenders.sort_by_key(|extender| extender.ignorable);
    out
}

fn check_resource(name: &str, path: &Path, errors: &mut ErrorList) {
    let messages = validation::qualified_name(name);
    if messages.is_empty() && !api_rules::is_extended_resource(name) {
        errors.push(FieldError::invalid(path, name, "is an invalid extended resource name"));
    }
    errors.extend(messages.into_iter().map(|message| FieldError::invalid(path, name, message)));
}

fn extender(source: &SchedulerExtender, path: &Path, errors: &mut ErrorList) -> Option<Extender> {
    if !source.prioritize_verb.is_empty() && source.weight <= 0 {
        let detail = "must have a positive weight applied to it";
        errors.push(FieldError::invalid(&path.child("weight"), source.weight, detail));
    }
    let timeout = match source.http_timeout.map_or(0, |timeout| timeout.nanos()) {
        0 => DEFAULT_TIMEOUT,
        nanos => u64::try_from(nanos).map(Duration::from_nanos).unwrap_or_else(|_| {
            let detail = "must not be negative";
            errors.push(FieldError::invalid(&path.child("httpTimeout"), nanos, detail));
            DEFAULT_TIMEOUT
        }),
    };
    let url = source.url_prefix.trim_end_matches('/').to_owned();
    let transport = url.parse::<Uri>().map_err(|error| error.to_string()).and_then(|uri| {
        let encrypted = match uri.scheme_str() {
            Some("https") => true,
            Some("http") => false,
            _ => return Err("must be a URL with http or https".to_owned()),
        };
        if uri.query().is_some() {
            return Err("must have no query".to_owned());
        }
        let transport = transport(source, &url, encrypted).map_err(|error| error.to_string())?;
        Ok((transport, uri.path().trim_end_matches('/').to_owned()))
    });
    let (transport, url_path) = transport
        .map_err(|detail| {
            let path = path.child("urlPrefix");
            errors.push(FieldError::invalid(&path, source.url_prefix.as_str(), detail));
        })
        .ok()?;
    Some(Extender {
        core: sched_core::Extender {
            resources: source.managed_resources.iter().map(|r| Sym::of(&r.name)).collect(),
            filters: !source.filter_verb.is_empty(),
            scores: !source.prioritize_verb.is_empty(),
            preempts: !source.preempt_verb.is_empty(),
        },
        url,
        path: url_path,
        filter_verb: source.filter_verb.clone(),
        prioritize_verb: source.prioritize_verb.clone(),
        preempt_verb: source.preempt_verb.clone(),
        bind_verb: source.bind_verb.clone(),
        weight: source.weight,
        timeout,
        caches_nodes: source.node_cache_capable,
        ignorable: source.ignorable,
        transport,
    })
}

/// The connections to an extender cannot be prepared.
#[derive(Debug, thiserror::Error)]
enum TransportError {
    #[error("tlsConfig: {0}")]
    Tls(#[from] TlsError),
    #[error("tlsConfig.{field} is not base64: {source}")]
    Base64 { field: &'static str, source: base64::DecodeError },
    #[error("tlsConfig: specifying a root certificates file with the insecure flag is not allowed")]
    InsecureAuthority,
    #[error("tlsConfig: a client certificate and its key are needed together")]
    HalfIdentity,
    #[error(transparent)]
    Address(#[from] client::Error),
}

fn transport(
    source: &SchedulerExtender,
    url: &str,
    encrypted: bool,
) -> Result<HttpTransport, TransportError> {
    if !encrypted {
        return Ok(HttpTransport::reused_http1(url, ClientTls::anyone())?);
    }
    let config = source.tls_config.clone().unwrap_or_default();
    let server_name = config.server_name.clone();
    let transport = HttpTransport::reused_http1(url, tls(config, source.enable_https)?)?;
    Ok(if server_name.is_empty() { transport } else { transport.with_server_name(&server_name) })
}

/// A PEM text of the settings: from the configuration, or from a file that may change.
#[derive(Clone)]
enum Pem {
    Data(Vec<u8>),
    File(PathBuf),
}

impl Pem {
    fn new(field: &'static str, data: &str, file: &str) -> Result<Option<Self>, TransportError> {
        if !data.is_empty() {
            let bytes = STANDARD.decode(data.trim());
            let bytes = bytes.map_err(|source| TransportError::Base64 { field, source })?;
            return Ok(Some(Self::Data(bytes)));
        }
        Ok((!file.is_empty()).then(|| Self::File(file.into())))
    }

    fn file(&self) -> Option<PathBuf> {
        match self {
            Self::Data(_) => None,
            Self::File(path) => Some(path.clone()),
        }
    }

    fn read(&self) -> Result<Vec<u8>, TlsError> {
        match self {
            Self::Data(bytes) => Ok(bytes.clone()),
            Self::File(path) => {
                std::fs::read(path).map_err(|source| TlsError::Read { path: path.clone(), source })
            }
        }
    }
}

/// Returns the TLS settings. Without authorities, `enableHTTPS` accepts every certificate, as upstream does.
fn tls(config: ExtenderTls, enable_https: bool) -> Result<ClientTls, TransportError> {
    let certificate = Pem::new("certData", &config.cert_data, &config.cert_file)?;
    let key = Pem::new("keyData", &config.key_data, &config.key_file)?;
    let given = Pem::new("caData", &config.ca_data, &config.ca_file)?;
    if given.is_some() && config.insecure {
        return Err(TransportError::InsecureAuthority);
    }
    if certificate.is_some() != key.is_some() {
        return Err(TransportError::HalfIdentity);
    }
    let insecure = config.insecure || enable_https && given.is_none();
    let system = || Pem::File(SYSTEM_AUTHORITIES.into());
    let ca = given.or_else(|| (!insecure).then(system));
    let files = [&ca, &certificate, &key].into_iter().flatten().filter_map(Pem::file).collect();
    let read = |pem: &Option<Pem>| pem.as_ref().map(Pem::read).transpose();
    Ok(ClientTls::following(files, move || {
        let (ca, certificate, key) = (read(&ca)?, read(&certificate)?, read(&key)?);
        Ok(TlsMaterial { ca, certificate, key, insecure })
    })?)
}
