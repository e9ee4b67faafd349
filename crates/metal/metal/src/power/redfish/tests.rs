//! Tests against our own simulated controller.

use std::sync::Arc;

use futures_util::{FutureExt, future::BoxFuture};
use http::Response;
use http_body_util::BodyExt as _;
use parking_lot::Mutex;
use serve::Body;

use super::{super::Kind, *};

/// A controller with one system that records its requests.
#[derive(Default)]
struct SimulatedController {
    requests: Mutex<Vec<String>>,
    /// `true` if it requires a session.
    sessions: bool,
}

const SYSTEM: &str = "/redfish/v1/Systems/437XR1138R2";

impl serve::Handler for SimulatedController {
    fn handle(&self, request: Request<Body>) -> BoxFuture<'_, Response<Body>> {
        async move {
            let (parts, body) = request.into_parts();
            let body = body.collect().await.unwrap().to_bytes();
            let respond = |status: u16, value: Value| {
                let body = serve::full(value.to_string());
                Response::builder().status(status).body(body).unwrap()
            };
            let is = |name: &str, wanted: &str| {
                parts.headers.get(name).is_some_and(|value| value == wanted)
            };
            let known = if self.sessions {
                is(TOKEN, "t")
            } else {
                is("authorization", "Basic cm9vdDpjYWx2aW4=")
            };
            if !known && parts.uri.path() == SESSIONS && self.sessions {
                assert!(!parts.headers.contains_key("authorization"));
                let wanted = json!({ "UserName": "root", "Password": "calvin" });
                let sent: Value = serde_json::from_slice(&body).unwrap();
                if sent == wanted {
                    let mut made = respond(201, json!({}));
                    let at = HeaderValue::from_static("https://bmc/redfish/v1/Sessions/7");
                    made.headers_mut().insert(TOKEN, HeaderValue::from_static("t"));
                    made.headers_mut().insert(header::LOCATION, at);
                    return made;
                }
            }
            if !known {
                return respond(401, json!({ "error": {"message": "who?"} }));
            }
            match (parts.method.as_str(), parts.uri.path()) {
                ("GET", SYSTEMS) => respond(200, json!({ "Members": [{"@odata.id": SYSTEM}] })),
                ("GET", SYSTEM) => respond(
                    200,
                    json!({ "PowerState": "Off", "Actions": {"#ComputerSystem.Reset": {
                        "target": format!("{SYSTEM}/Actions/ComputerSystem.Reset")}} }),
                ),
                (method, path) => {
                    let text = String::from_utf8(body.to_vec()).unwrap();
                    self.requests.lock().push(format!("{method} {path} {text}"));
                    Response::builder().status(204).body(serve::full("")).unwrap()
                }
            }
        }
        .boxed()
    }
}

/// Serves a controller until the tasks shut down and returns its BMC entry.
async fn serving(simulated: &Arc<SimulatedController>, tasks: &rt::Tasks) -> Bmc {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let limits = serve::Limits::default();
    tasks.spawn("bmc", serve::serve(listener, None, limits, simulated.clone(), tasks.clone()));
    Bmc {
        kind: Kind::Redfish,
        address: format!("http://{address}"),
        user: "root".into(),
        password: "calvin".into(),
        uefi: false,
        insecure: false,
        ca: None,
        system: None,
    }
}

#[tokio::test]
async fn opens_session_if_required_and_closes_it() {
    let simulated =
        Arc::new(SimulatedController { sessions: true, ..SimulatedController::default() });
    let tasks = rt::Tasks::new(rt::Shutdown::new());
    let bmc = Bmc { uefi: true, ..serving(&simulated, &tasks).await };
    perform(&bmc, Action::NextBootNetwork).await.unwrap();
    let requests = simulated.requests.lock().clone();
    assert!(requests[0].contains(r#""BootSourceOverrideMode":"UEFI""#), "{requests:?}");
    assert_eq!(requests[1], "DELETE /redfish/v1/Sessions/7 ");
    let wrong = Bmc { password: "x".into(), ..bmc };
    let error = perform(&wrong, Action::Status).await.unwrap_err();
    assert!(matches!(error, Error::Password(_)) && error.to_string().contains("who?"), "{error}");
    tasks.shutdown().stop();
}

#[tokio::test]
async fn powers_machine() {
    let (simulated, tasks) =
        (Arc::new(SimulatedController::default()), rt::Tasks::new(rt::Shutdown::new()));
    let bmc = serving(&simulated, &tasks).await;
    assert_eq!(perform(&bmc, Action::Status).await.unwrap(), "off");
    perform(&bmc, Action::BootNetwork).await.unwrap();
    let named = Bmc { system: Some("/redfish/v1/Systems/2".into()), ..bmc.clone() };
    let error = perform(&named, Action::Status).await.unwrap_err().to_string();
    assert!(error.contains("GET /redfish/v1/Systems/2"), "{error}");
    let wrong = Bmc { password: "x".into(), ..bmc.clone() };
    let error = perform(&wrong, Action::Status).await.unwrap_err().to_string();
    assert!(error.contains("401") && error.contains("who?"), "{error}");
    let requests = simulated.requests.lock().clone();
    let boot = r#"{"Boot":{"BootSourceOverrideEnabled":"Once","BootSourceOverrideTarget":"Pxe"}}"#;
    assert_eq!(requests[0], format!("PATCH {SYSTEM} {boot}"));
    assert_eq!(
        requests[1],
        format!("POST {SYSTEM}/Actions/ComputerSystem.Reset {{\"ResetType\":\"On\"}}")
    );
    for address in ["10.0.0.1", "ftp://x", "https://"] {
        let bmc = Bmc { address: address.into(), ..bmc.clone() };
        assert!(matches!(perform(&bmc, Action::Status).await, Err(Error::Address(_))), "{address}");
    }
    tasks.shutdown().stop();
}

#[test]
fn damaged_answers() {
    let seeds: [&[u8]; 3] = [
        br#"{"Members": [{"@odata.id": "/redfish/v1/Systems/1"}]}"#,
        br##"{"PowerState": "On", "Actions": {"#ComputerSystem.Reset": {"target": "/reset", "ResetType@Redfish.AllowableValues": ["On"]}}}"##,
        br#"{"error": {"@Message.ExtendedInfo": [{"Message": "no"}]}}"#,
    ];
    fuzz::fuzz(env!("CARGO_MANIFEST_DIR"), "redfish", &seeds, |input| {
        let Ok(answer) = Budget::object().json(input) else { return };
        let _ = power_state(&answer);
        let system = only_system(&answer).unwrap_or_default();
        // What a controller says goes into a request as it is, or into none.
        let _ = reset_target(&answer, &system).parse::<Uri>();
    });
}
