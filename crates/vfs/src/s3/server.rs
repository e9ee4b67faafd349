//! Requests to a server of S3: signed, sent again when that may help, and answered within bounds.

use std::{
    fs::File,
    io::{Seek as _, Write as _},
    path::Path,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aws::{Given, Source};
use bytes::Bytes;
use client::{ClientTls, HttpTransport, Transport as _};
use http::{HeaderMap, HeaderName, Method, Request, Response, StatusCode, header};
use http_body_util::BodyExt as _;
use tokio::time::{sleep, timeout};

use super::{
    answer,
    place::{Address, Place},
};
use crate::{Error, body};

/// How often something is asked before the last answer counts.
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);
/// How long an answer takes that is read into memory, and how long a server may be silent about any other.
const PATIENCE: Duration = Duration::from_secs(30);
const REGION: &str = "x-amz-bucket-region";
/// What is asked.
pub(super) struct Call<'a> {
    pub(super) operation: &'static str,
    /// What it is about, in the store's words.
    pub(super) name: &'a str,
    pub(super) method: Method,
    /// The object's key; empty for the bucket.
    pub(super) key: String,
    pub(super) query: Vec<(&'static str, String)>,
    pub(super) headers: Vec<(HeaderName, String)>,
    pub(super) payload: Payload<'a>,
}

impl Call<'_> {
    /// An answer that cannot be used.
    pub(super) fn nonsense(&self, cause: &str) -> Error {
        Error::Answer {
            operation: self.operation,
            name: self.name.to_owned(),
            status: "nonsense".to_owned(),
            cause: cause.to_owned(),
        }
    }
}

/// What is sent with it.
pub(super) enum Payload<'a> {
    Bytes { content: Bytes, sum: String },
    File { path: &'a Path, length: u64, sum: String },
}

impl Payload<'_> {
    pub(super) fn bytes(content: &[u8]) -> Self {
        Self::Bytes { content: Bytes::copy_from_slice(content), sum: body::sum_of(content) }
    }

    fn sum(&self) -> &str {
        let (Self::Bytes { sum, .. } | Self::File { sum, .. }) = self;
        sum
    }

    fn length(&self) -> u64 {
        match self {
            Self::Bytes { content, .. } => content.len() as u64,
            Self::File { length, .. } => *length,
        }
    }

    fn body(&self) -> std::io::Result<client::Body> {
        match self {
            Self::Bytes { content, .. } => Ok(client::full(content.clone())),
            // The thread that reads it has nothing else to do.
            Self::File { path, .. } => Ok(body::of_file(File::open(path)?)),
        }
    }
}

impl Default for Payload<'_> {
    fn default() -> Self {
        Self::bytes(&[])
    }
}

/// Where a good answer's body goes, and how long it may be.
pub(super) enum To<'a> {
    Memory(usize),
    File(&'a mut File, u64),
}

/// What came.
pub(super) struct Answer {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    /// Empty if it went into a file.
    pub(super) body: Bytes,
    /// Whether the same was asked before, and may have been done although no answer came.
    pub(super) is_repeated: bool,
}

impl Answer {
    fn code(&self) -> String {
        answer::problem(&self.body).0
    }

    /// Whether there is no such object; a bucket that is missing is another matter.
    pub(super) fn is_absent(&self) -> bool {
        self.status == StatusCode::NOT_FOUND && self.code() == "NoSuchKey"
    }

    /// Whether the object is not what the request takes it for.
    pub(super) fn is_conflict(&self) -> bool {
        [StatusCode::PRECONDITION_FAILED, StatusCode::CONFLICT].contains(&self.status)
    }

    /// Whether it may be otherwise in a while.
    fn is_passing(&self) -> bool {
        let code = self.code();
        matches!(self.status.as_u16(), 408 | 429 | 500 | 502 | 503 | 504)
            || ["ConditionalRequestConflict", "RequestTimeout"].contains(&code.as_str())
    }

    /// An error, if it says that something is wrong.
    pub(super) fn succeeded(&self, call: &Call<'_>) -> Result<(), Error> {
        if self.status.is_success() {
            return Ok(());
        }
        let (code, message) = answer::problem(&self.body);
        let cause = match (self.status.as_u16(), code.as_str()) {
            (300..400, _) => {
                "it is elsewhere, where credentials are not shown; check S3_ENDPOINT and S3_REGION"
                    .to_owned()
            }
            (_, "") => "it says not why".to_owned(),
            (403, _) => format!("{code}: {message}; check the credentials and their rights"),
            _ => format!("{code}: {message}"),
        };
        let status = self.status.as_u16().to_string();
        let name = call.name.to_owned();
        Err(Error::Answer { operation: call.operation, name, status, cause })
    }
}

/// The way to a bucket.
#[derive(Debug)]
pub(super) struct Server {
    place: Place,
    credentials: Source,
    way: Mutex<Arc<Way>>,
}

struct Way {
    region: String,
    address: Address,
    transport: HttpTransport,
}

impl std::fmt::Debug for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Way").field("address", &self.address).finish_non_exhaustive()
    }
}

fn way(place: &Place, region: &str) -> Result<Way, Error> {
    let address = place.address(region);
    let failed = |cause: String| Error::Server { address: address.server.clone(), cause };
    let tls = match address.server.starts_with("http:") {
        true => ClientTls::anyone(),
        false => {
            aws::trust(place.authorities.as_deref()).map_err(|error| failed(error.to_string()))?
        }
    };
    let transport = HttpTransport::kept_http1(&address.server, tls);
    let transport = transport.map_err(|error| failed(error.to_string()))?;
    Ok(Way { region: region.to_owned(), address, transport })
}

impl Server {
    pub(super) fn new(place: Place) -> Result<Self, Error> {
        let way = Mutex::new(Arc::new(way(&place, &place.region)?));
        let given = place.own.as_ref().map(|own| Given {
            key: own.key.clone(),
            secret: own.secret.clone(),
            from: "S3_ACCESS_KEY_ID",
        });
        let credentials = Source::new(&place.region, place.authorities.clone(), given);
        Ok(Self { credentials, way, place })
    }

    /// Whether what AWS is known for may be asked for.
    pub(super) fn is_aws(&self) -> bool {
        self.place.own.is_none()
    }

    fn way(&self) -> Arc<Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Asks, and asks again where that may help. An answer that says that something is wrong is an answer.
    pub(super) async fn send(&self, call: &Call<'_>, mut to: To<'_>) -> Result<Answer, Error> {
        let mut backoff = rt::Backoff::new(FIRST_PAUSE, LONGEST_PAUSE);
        let (mut attempt, mut has_moved, mut is_repeated) = (1, false, false);
        loop {
            let asked = self.once(call, &mut to).await;
            let last = attempt == ATTEMPTS;
            match asked {
                Ok(answer) if !has_moved && self.moves(&answer)? => {
                    has_moved = true;
                    continue;
                }
                Ok(answer) if last || !answer.is_passing() => {
                    return Ok(Answer { is_repeated, ..answer });
                }
                Err(error) if last || !error.is_passing() => return Err(error),
                _ => {}
            }
            (attempt, is_repeated) = (attempt + 1, true);
            sleep(backoff.next(rt::random())).await;
        }
    }

    /// Whether the answer says that the bucket is in another region: from now on it is asked for there.
    fn moves(&self, answer: &Answer) -> Result<bool, Error> {
        if !matches!(answer.status.as_u16(), 300..=400) {
            return Ok(false);
        }
        let said = answer.headers.get(REGION).and_then(|region| region.to_str().ok());
        let own = self.way();
        match said.filter(|region| aws::is_region(region) && *region != own.region) {
            None => Ok(false),
            Some(region) => {
                let found = Arc::new(way(&self.place, region)?);
                *self.way.lock().unwrap_or_else(PoisonError::into_inner) = found;
                Ok(true)
            }
        }
    }

    async fn once(&self, call: &Call<'_>, to: &mut To<'_>) -> Result<Answer, Error> {
        let way = self.way();
        let request = self.request(call, &way).await?;
        let failed =
            |source| Error::Sent { operation: call.operation, name: call.name.to_owned(), source };
        let late = || Error::Late {
            operation: call.operation,
            name: call.name.to_owned(),
            server: way.address.server.clone(),
        };
        // A large body takes its time on the way to the server.
        let patience = PATIENCE + Duration::from_secs(call.payload.length() >> 20);
        let response = timeout(patience, way.transport.send(request)).await;
        let response = response.map_err(|_| late())?.map_err(failed)?;
        let (head, body) = response.into_parts();
        let answered = |body| Answer {
            status: head.status,
            headers: head.headers.clone(),
            body,
            is_repeated: false,
        };
        let most = match to {
            To::File(file, most) if head.status == StatusCode::OK => {
                let response = Response::from_parts(head.clone(), body);
                save(call, response, file, *most, late).await?;
                return Ok(answered(Bytes::new()));
            }
            To::Memory(most) if head.status.is_success() => *most,
            _ => answer::LARGEST,
        };
        let length = length(&head.headers);
        let body = timeout(PATIENCE, client::read(call.name, body, most)).await;
        let body = body.map_err(|_| late())?.map_err(|error| match error {
            client::Error::TooLarge { .. } => {
                Error::TooMuch { name: call.name.to_owned(), most, unit: "bytes" }
            }
            error => failed(error),
        })?;
        // Where a connection's end is the answer's, a cut one looks whole.
        if call.method == Method::GET && !call.key.is_empty() && length != Some(body.len() as u64) {
            return Err(call.nonsense("it says not how long the object is, or was cut"));
        }
        Ok(answered(body))
    }

    async fn request(&self, call: &Call<'_>, way: &Way) -> Result<Request<client::Body>, Error> {
        let failed = |cause: String| Error::Server { address: way.address.server.clone(), cause };
        let key = api_meta::percent_encode(&call.key, b"-._~/");
        let pairs = call.query.iter();
        let pairs = pairs.map(|(name, value)| format!("{name}={}", client::escape(value)));
        let query = pairs.collect::<Vec<_>>().join("&");
        let mark = if query.is_empty() { "" } else { "?" };
        let uri = format!("{}/{key}{mark}{query}", way.address.path);
        let mut request = Request::builder().method(&call.method).uri(&uri);
        request = request.header(header::HOST, &way.address.host);
        for (name, value) in &call.headers {
            request = request.header(name, value);
        }
        if call.method == Method::PUT {
            request = request.header(header::CONTENT_LENGTH, call.payload.length());
        }
        let body = call.payload.body().map_err(Error::io("reading what is to be", call.name))?;
        let mut request = request.body(body).map_err(|error| failed(error.to_string()))?;
        let credentials = self.credentials.current().await?;
        aws::sign(&mut request, call.payload.sum(), &way.region, "s3", credentials)
            .map_err(|error| failed(error.to_string()))?;
        Ok(request)
    }
}

fn length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH)?.to_str().ok()?.parse().ok()
}

/// Writes an answer's body into a file, from its beginning.
async fn save(
    call: &Call<'_>,
    response: Response<client::Body>,
    file: &mut File,
    most: u64,
    late: impl Fn() -> Error,
) -> Result<(), Error> {
    let failed = || Error::io("copying", call.name);
    let length = length(response.headers());
    let length = length.ok_or_else(|| call.nonsense("it says not how long the object is"))?;
    if length > most {
        let most = usize::try_from(most).unwrap_or(usize::MAX);
        return Err(Error::TooMuch { name: call.name.to_owned(), most, unit: "bytes" });
    }
    file.set_len(0).and_then(|()| file.rewind()).map_err(failed())?;
    let (mut body, mut written) = (response.into_body(), 0);
    while let Some(frame) = timeout(PATIENCE, body.frame()).await.map_err(|_| late())? {
        let frame = frame.map_err(|source| Error::Sent {
            operation: call.operation,
            name: call.name.to_owned(),
            source: client::Error::Transport {
                operation: "reading the answer to",
                target: call.name.to_owned(),
                source,
            },
        })?;
        if let Ok(data) = frame.into_data() {
            written += data.len() as u64;
            file.write_all(&data).map_err(failed())?;
        }
    }
    match written == length {
        true => file.sync_all().map_err(failed()),
        false => Err(call.nonsense("it was cut")),
    }
}
