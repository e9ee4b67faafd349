//! Calls: signed, sent again when that may help, counted, and answered within bounds.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use client::{ClientTls, HttpTransport, Transport as _};
use http::{Request, header};
use serde_json::{Value, json};
use tokio::{
    sync::Mutex,
    time::{sleep, timeout},
};

use crate::{
    Environment, Error, Source,
    facts::Operation,
    place::{self, Place},
    request::{Wire, answer, wire},
    sign::{hash, sign, trust},
};

/// How often something is asked before the last answer counts. With five calls a second let in, that is for minutes.
const ATTEMPTS: u32 = 12;
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// The most bytes of an answer, and the most pages of one.
const LARGEST: usize = 32 << 20;
const PAGES: usize = 1_000;

/// Asks AWS, in one region.
pub struct Client {
    region: String,
    own: Option<String>,
    authorities: Option<String>,
    credentials: Source,
    ways: Mutex<HashMap<String, Arc<HttpTransport>>>,
    calls: AtomicUsize,
}

impl Client {
    /// A client for a region, by AWS' own variables and files. `AWS_ENDPOINT_URL` names a server that stands in for AWS.
    pub fn open(region: &str, environment: Environment<'_>) -> Result<Self, Error> {
        if !place::is_region(region) {
            let reason = "is no name of a region";
            return Err(Error::Place { variable: "AWS_REGION", value: region.to_owned(), reason });
        }
        let authorities = environment("AWS_CA_BUNDLE").filter(|path| !path.is_empty());
        Ok(Self {
            region: region.to_owned(),
            own: place::own(environment)?,
            credentials: Source::new(region, authorities.clone(), None),
            authorities,
            ways: Mutex::default(),
            calls: AtomicUsize::new(0),
        })
    }

    /// The same with a key that is given.
    pub fn with_key(self, given: crate::Given) -> Self {
        let credentials = Source::new(&self.region, self.authorities.clone(), Some(given));
        Self { credentials, ..self }
    }

    /// How many requests were sent, those that were sent again among them.
    pub fn calls(&self) -> usize {
        self.calls.load(Ordering::Relaxed)
    }

    /// Asks for an operation with its parameters, which are under their wire names: lists are arrays.
    pub async fn call(
        &self,
        service: &str,
        operation: &str,
        parameters: &Value,
    ) -> Result<Value, Error> {
        let unknown = || Error::Unknown {
            operation: format!("{service}:{operation}"),
            parameter: String::new(),
        };
        let operation = Operation::find(service, operation).ok_or_else(unknown)?;
        let own = self.own.as_deref();
        let place = Place::of(service, &self.region, own).ok_or_else(unknown)?;
        let wire = wire(operation, place.protocol, parameters)?;
        let mut backoff = rt::Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let mut attempt = 1;
        loop {
            match self.once(operation, &place, &wire).await {
                Err(error)
                    if attempt < ATTEMPTS
                        && (error.is_throttled() || error.is_passing() && operation.reads()) => {}
                done => return done,
            }
            attempt += 1;
            sleep(backoff.next(rt::random())).await;
        }
    }

    /// All pages of an answer.
    pub async fn pages(
        &self,
        service: &str,
        operation: &str,
        parameters: &Value,
    ) -> Result<Vec<Value>, Error> {
        let (mut all, mut parameters) = (Vec::new(), parameters.clone());
        for _ in 0..PAGES {
            let page = self.call(service, operation, &parameters).await?;
            let next = next(&page, service);
            all.push(page);
            let Some((name, token)) = next else { return Ok(all) };
            if parameters.get(name) == Some(&token) {
                break;
            }
            if !parameters.is_object() {
                parameters = json!({});
            }
            if let Value::Object(members) = &mut parameters {
                members.insert(name.to_owned(), token);
            }
        }
        Err(Error::Nonsense { operation: operation.to_owned(), cause: "its pages do not end" })
    }

    async fn once(
        &self,
        operation: &Operation,
        place: &Place,
        wire: &Wire,
    ) -> Result<Value, Error> {
        let failed = |cause: String| Error::Server {
            operation: operation.name.to_owned(),
            server: place.server.clone(),
            cause,
        };
        let way = self.way(place).await.map_err(|cause| failed(cause.to_string()))?;
        let request = self.request(place, wire).await.map_err(|error| match error.downcast() {
            Ok(own) => *own,
            Err(error) => failed(error.to_string()),
        })?;
        self.calls.fetch_add(1, Ordering::Relaxed);
        let asked = async {
            let (head, body) = way.send(request).await?.into_parts();
            Ok::<_, client::Error>((
                head.status,
                client::read(operation.name, body, LARGEST).await?,
            ))
        };
        let asked = timeout(PATIENCE, asked).await;
        let asked = asked.map_err(|_| failed("it did not answer in time".to_owned()))?;
        let (status, body) = asked.map_err(|error| failed(error.to_string()))?;
        answer(operation, place.protocol, status, &body)
    }

    async fn way(
        &self,
        place: &Place,
    ) -> Result<Arc<HttpTransport>, Box<dyn std::error::Error + Send + Sync>> {
        let mut ways = self.ways.lock().await;
        if let Some(way) = ways.get(&place.server) {
            return Ok(way.clone());
        }
        let tls = match place.server.starts_with("http:") {
            true => ClientTls::anyone(),
            false => trust(self.authorities.as_deref())?,
        };
        let way = Arc::new(HttpTransport::kept_http1(&place.server, tls)?);
        ways.insert(place.server.clone(), way.clone());
        Ok(way)
    }

    async fn request(
        &self,
        place: &Place,
        wire: &Wire,
    ) -> Result<Request<client::Body>, Box<dyn std::error::Error + Send + Sync>> {
        let mut request = Request::builder().method(&wire.method).uri(&wire.path);
        request = request.header(header::HOST, &place.host);
        for (name, value) in &wire.headers {
            request = request.header(name, value);
        }
        let mut request = request.body(client::full(wire.body.clone()))?;
        let credentials = self.credentials.current().await?;
        let sum = hash(wire.body.as_bytes());
        sign(&mut request, &sum, &place.region, place.signed, credentials)?;
        Ok(request)
    }
}

/// The parameter that the next page is asked for with, and its value.
fn next(page: &Value, service: &str) -> Option<(&'static str, Value)> {
    let said = |name: &str| {
        let token = page.get(name)?.as_str().filter(|token| !token.is_empty())?;
        Some(Value::from(token))
    };
    let cut = page.get("IsTruncated").and_then(Value::as_str);
    match service {
        "ec2" => Some(("NextToken", said("nextToken")?)),
        "iam" if cut == Some("true") => Some(("Marker", said("Marker")?)),
        "iam" => None,
        "route53" => Some(("marker", said("NextMarker")?)),
        "elbv2" => Some(("Marker", said("NextMarker")?)),
        _ => Some(("NextToken", said("NextToken")?)),
    }
}
