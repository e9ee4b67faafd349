//! Calls AWS operations: signs requests, retries them where safe, counts them, and bounds the answers.

use std::{
    collections::{HashMap, HashSet},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use api_meta::Tree as _;
use client::{ClientTls, HttpTransport, Transport as _};
use http::{Request, header};
use serde_json::Value;
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use crate::{
    credentials::{Source, StaticKey},
    endpoint::{self, ServiceEndpoint},
    environment::Environment,
    error::Error,
    operation::Operation,
    request::{HttpCall, build_call, parse_response},
    sign::{hash, sign, trust},
};

/// The number of attempts before the last answer is returned. At five admitted calls per second, this lasts for
/// minutes.
const ATTEMPTS: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// The time limit for an answer.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The largest answer, and the largest listing, in bytes.
const LARGEST: usize = 32 << 20;
const LARGEST_LISTING: usize = 128 << 20;
/// The most pages of a listing.
const PAGES: usize = 1_000;

/// A parsed answer, and its length in bytes.
struct Answer {
    value: Value,
    length: usize,
}

/// A client for AWS' API in one region.
pub struct Client {
    region: String,
    own: Option<String>,
    authorities: Option<String>,
    credentials: Source,
    transports: Mutex<HashMap<String, Arc<HttpTransport>>>,
    calls: AtomicUsize,
}

impl Client {
    /// Opens a client for a region, configured by AWS' standard variables and files. `AWS_ENDPOINT_URL` names a server
    /// that replaces AWS.
    pub fn open(region: &str, environment: Environment<'_>) -> Result<Self, Error> {
        if !endpoint::is_region(region) {
            let reason = "is not the name of a region";
            return Err(Error::InvalidSetting {
                variable: "AWS_REGION",
                value: region.to_owned(),
                reason,
            });
        }
        let authorities = environment("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
        Ok(Self {
            region: region.to_owned(),
            own: endpoint::custom_endpoint(environment)?,
            credentials: Source::new(region, authorities.clone(), None),
            authorities,
            transports: Mutex::default(),
            calls: AtomicUsize::new(0),
        })
    }

    /// Returns the client with an explicit key.
    pub fn with_key(self, key: StaticKey) -> Self {
        let credentials = Source::new(&self.region, self.authorities.clone(), Some(key));
        Self { credentials, ..self }
    }

    /// Returns the number of requests sent, including retries.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Calls an operation. Parameters have their wire names; lists are arrays.
    pub async fn call(
        &self,
        service: &str,
        operation: &str,
        parameters: &Value,
    ) -> Result<Value, Error> {
        Ok(self.exchange(service, operation, parameters).await?.value)
    }

    /// Calls an operation, with retries where they may help.
    async fn exchange(
        &self,
        service: &str,
        operation: &str,
        parameters: &Value,
    ) -> Result<Answer, Error> {
        let unknown = || Error::Unknown {
            operation: format!("{service}:{operation}"),
            parameter: String::new(),
        };
        let operation = Operation::find(service, operation).ok_or_else(unknown)?;
        let own = self.own.as_deref();
        let endpoint = ServiceEndpoint::of(service, &self.region, own).ok_or_else(unknown)?;
        let call = build_call(operation, endpoint.protocol, parameters)?;
        let mut backoff = rt::Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut attempt = 1;
        loop {
            match self.send_once(operation, &endpoint, &call).await {
                Err(error)
                    if attempt < ATTEMPTS
                        && (error.is_throttled() || error.is_passing() && operation.reads()) => {}
                done => return done,
            }
            attempt += 1;
            sleep(backoff.next(rt::random())).await;
        }
    }

    /// Calls an operation and returns all pages of its result.
    ///
    /// # Errors
    ///
    /// Returns an error if the listing does not end within its limits, or if a page is cut without naming the next one.
    pub async fn pages(
        &self,
        service: &str,
        operation: &str,
        parameters: &Value,
    ) -> Result<Vec<Value>, Error> {
        let invalid = |cause| Error::InvalidAnswer { operation: operation.to_owned(), cause };
        let (mut all, mut parameters) = (Vec::new(), parameters.clone());
        let (mut seen, mut length) = (HashSet::new(), 0);
        for _ in 0..PAGES {
            let page = self.exchange(service, operation, &parameters).await?;
            length += page.length;
            if length > LARGEST_LISTING {
                return Err(invalid("its pages are too large"));
            }
            let next = next(&page.value, service).map_err(invalid)?;
            all.push(page.value);
            let Some((name, token)) = next else { return Ok(all) };
            if !seen.insert(token.clone()) {
                return Err(invalid("it repeats a page"));
            }
            parameters.put(name, token);
        }
        Err(invalid("it has too many pages"))
    }

    async fn send_once(
        &self,
        operation: &Operation,
        endpoint: &ServiceEndpoint,
        call: &HttpCall,
    ) -> Result<Answer, Error> {
        let failed = |cause: String| Error::Server {
            operation: operation.name.to_owned(),
            server: endpoint.server.clone(),
            cause,
        };
        let transport =
            self.transport(endpoint).await.map_err(|cause| failed(cause.to_string()))?;
        let request =
            self.request(endpoint, call).await.map_err(|error| match error.downcast() {
                Ok(own) => *own,
                Err(error) => failed(error.to_string()),
            })?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let result = async {
            let (head, body) = transport.send(request).await?.into_parts();
            Ok::<_, client::Error>((
                head.status,
                client::read(operation.name, body, LARGEST).await?,
            ))
        };
        let result = timeout(TIMEOUT, result).await;
        let result = result.map_err(|_| failed("the request timed out".to_owned()))?;
        let (status, body) = result.map_err(|error| failed(error.to_string()))?;
        let value = parse_response(operation, endpoint.protocol, status, &body)?;
        Ok(Answer { value, length: body.len() })
    }

    async fn transport(
        &self,
        endpoint: &ServiceEndpoint,
    ) -> Result<Arc<HttpTransport>, Box<dyn std::error::Error + Send + Sync>> {
        let mut transports = self.transports.lock().await;
        if let Some(transport) = transports.get(&endpoint.server) {
            return Ok(transport.clone());
        }
        let tls = if endpoint.server.starts_with("http:") {
            ClientTls::anyone()
        } else {
            trust(self.authorities.as_deref())?
        };
        let transport = Arc::new(HttpTransport::reused_http1(&endpoint.server, tls)?);
        transports.insert(endpoint.server.clone(), transport.clone());
        Ok(transport)
    }

    async fn request(
        &self,
        endpoint: &ServiceEndpoint,
        call: &HttpCall,
    ) -> Result<Request<client::Body>, Box<dyn std::error::Error + Send + Sync>> {
        let mut request = Request::builder().method(&call.method).uri(&call.path);
        request = request.header(header::HOST, &endpoint.host);
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        let mut request = request.body(client::full(call.body.clone()))?;
        let credentials = self.credentials.current().await?;
        let sum = hash(call.body.as_bytes());
        sign(&mut request, &sum, &endpoint.region, endpoint.signed, credentials)?;
        Ok(request)
    }
}

/// Returns the parameter and token of the next page; `None` for the last one.
fn next(page: &Value, service: &str) -> Result<Option<(&'static str, String)>, &'static str> {
    let (parameter, member) = match service {
        "ec2" => ("NextToken", "nextToken"),
        "iam" => ("Marker", "Marker"),
        "route53" => ("marker", "NextMarker"),
        "elbv2" => ("Marker", "NextMarker"),
        _ => ("NextToken", "NextToken"),
    };
    let token = page.opt_text(member).map(str::to_owned);
    match (page.text("IsTruncated"), token) {
        ("true", None) => Err("it is truncated, but names no next page"),
        ("false", Some(_)) => Ok(None),
        (_, token) => Ok(token.map(|token| (parameter, token))),
    }
}
