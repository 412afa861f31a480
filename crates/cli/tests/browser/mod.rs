//! A page in headless Chromium, by the DevTools protocol: JSON over a WebSocket.

use std::io::{BufRead, BufReader};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tempfile::TempDir;
use tungstenite::{Message, WebSocket};

/// Only a failing test waits this long.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Browser {
    child: Child,
    socket: WebSocket<TcpStream>,
    next: u64,
    /// The page's session.
    session: Option<String>,
    /// Errors that the page has caused.
    pub(crate) errors: Vec<String>,
    /// Its profile.
    _profile: TempDir,
}

impl Browser {
    /// Opens a page of this size; `None` if there is no Chromium.
    pub(crate) fn open(url: &str, width: u32, height: u32) -> Option<Self> {
        let profile = tempfile::tempdir().unwrap();
        let folder = format!("--user-data-dir={}", profile.path().display());
        let started = Command::new("chromium")
            .args([
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--no-first-run",
            ])
            .args(["--remote-debugging-port=0", &folder, "about:blank"])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        let Ok(mut child) = started else {
            eprintln!("skipped: chromium is not installed");
            return None;
        };
        let mut log = BufReader::new(child.stderr.take().unwrap()).lines().map_while(Result::ok);
        let devtools = log.find_map(|line| line.strip_prefix("DevTools listening on ").map(str::to_owned));
        // Chromium must not block on a full pipe.
        thread::spawn(move || log.for_each(drop));
        let devtools = devtools.expect("chromium has ended");
        let address = devtools.strip_prefix("ws://").unwrap().split('/').next().unwrap();
        let stream = TcpStream::connect(address).unwrap();
        stream.set_read_timeout(Some(LIMIT)).unwrap();
        let (socket, _) = tungstenite::client(&devtools, stream).unwrap();
        let mut browser =
            Self { child, socket, next: 1, session: None, errors: Vec::new(), _profile: profile };
        let target = browser.call("Target.createTarget", json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let session = browser.call("Target.attachToTarget", attach);
        browser.session = Some(session["sessionId"].as_str().unwrap().to_owned());
        browser.call("Log.enable", json!({}));
        browser.call("Runtime.enable", json!({}));
        browser.size(width, height);
        browser.call("Page.navigate", json!({"url": url}));
        Some(browser)
    }

    /// Goes to another page, and waits until it is there.
    pub(crate) fn go(&mut self, url: &str) {
        self.call("Page.navigate", json!({"url": url}));
        self.until(&format!("document.readyState === 'complete' && location.href === '{url}'"));
    }

    pub(crate) fn size(&mut self, width: u32, height: u32) {
        let size = json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        self.call("Emulation.setDeviceMetricsOverride", size);
    }

    /// Shows the page in dark or light colours.
    pub(crate) fn colours(&mut self, scheme: &str) {
        let feature = json!({"features": [{"name": "prefers-color-scheme", "value": scheme}]});
        self.call("Emulation.setEmulatedMedia", feature);
    }

    /// Calls a method of the protocol and returns its result.
    pub(crate) fn call(&mut self, method: &str, params: Value) -> Value {
        let id = self.next;
        self.next += 1;
        let mut message = json!({"id": id, "method": method, "params": params});
        if let Some(session) = &self.session {
            message["sessionId"] = session.as_str().into();
        }
        self.socket.send(Message::text(message.to_string())).unwrap();
        loop {
            let Message::Text(text) = self.socket.read().unwrap() else { continue };
            let mut answer: Value = serde_json::from_str(&text).unwrap();
            self.note_error(&answer);
            if answer["id"] == id {
                assert!(answer["error"].is_null(), "{method}: {answer}");
                return answer["result"].take();
            }
        }
    }

    fn note_error(&mut self, message: &Value) {
        let params = &message["params"];
        match message["method"].as_str() {
            Some("Runtime.exceptionThrown") => self.errors.push(params["exceptionDetails"].to_string()),
            // Refused and failed requests are entries of the network.
            Some("Log.entryAdded")
                if params["entry"]["level"] == "error" && params["entry"]["source"] != "network" =>
            {
                self.errors.push(params["entry"].to_string());
            }
            _ => {}
        }
    }

    /// Evaluates an expression in the page.
    pub(crate) fn eval(&mut self, expression: &str) -> Value {
        let params = json!({"expression": expression, "returnByValue": true, "awaitPromise": true});
        let mut result = self.call("Runtime.evaluate", params);
        assert!(result["exceptionDetails"].is_null(), "{expression}: {result}");
        result["result"]["value"].take()
    }

    /// Waits until an expression is true.
    pub(crate) fn until(&mut self, expression: &str) {
        let start = Instant::now();
        while self.eval(&format!("Boolean({expression})")) != true {
            if start.elapsed() > LIMIT {
                let page = self.eval("document.body.innerText");
                panic!("{expression}: not true within {LIMIT:?}\n{}", page.as_str().unwrap_or_default());
            }
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Presses an element as a person does: by a click in its middle.
    pub(crate) fn press(&mut self, element: &str) {
        let at = self.eval(&format!(
            "(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}}); \
             const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2] }})()"
        ));
        for kind in ["mousePressed", "mouseReleased"] {
            let event = json!({"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1});
            self.call("Input.dispatchMouseEvent", event);
        }
    }

    /// Types text where the focus is.
    pub(crate) fn write(&mut self, text: &str) {
        self.call("Input.insertText", json!({"text": text}));
    }

    /// Returns an image of the whole page, beyond the window too.
    pub(crate) fn whole_picture(&mut self) -> Vec<u8> {
        let all = json!({"format": "png", "captureBeyondViewport": true});
        let picture = self.call("Page.captureScreenshot", all);
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }

    /// Returns an image of the page as PNG.
    pub(crate) fn picture(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", json!({"format": "png"}));
        STANDARD.decode(picture["data"].as_str().unwrap()).unwrap()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        self.session = None;
        let close = json!({"id": 0, "method": "Browser.close"}).to_string();
        if self.socket.send(Message::text(close)).is_err() {
            // It cannot be closed in an orderly way, or has ended.
            let _ = self.child.kill();
        }
        let _ = self.child.wait();
    }
}
