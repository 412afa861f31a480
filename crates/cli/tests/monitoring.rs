//! The dashboards and the alert rules, with a real Prometheus that scrapes an agent.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;

use crate::transfer::{Ended, said, until};
use mpib_agent::http::{Http, listen};
use mpib_agent::{Config, Server};
use mpib_host_view::Source;
use serde_json::Value;

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../packaging/grafana").join(name).canonicalize().unwrap()
}

/// A Prometheus that scrapes an agent every second and evaluates the alert rules.
struct Prometheus {
    url: String,
    _process: Ended,
}

impl Prometheus {
    /// Returns `None` if there is no Prometheus.
    fn start(folder: &Path, agent: &str) -> Option<Self> {
        let config = folder.join("prometheus.yml");
        let text = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [{:?}]\n\
             scrape_configs: [{{ job_name: mpib, static_configs: [{{ targets: [{agent:?}] }}] }}]\n",
            file("alerts.yaml")
        );
        fs::write(&config, text).unwrap();
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", config.display()));
        command.arg(format!("--storage.tsdb.path={}", folder.join("data").display()));
        command.arg("--web.listen-address=127.0.0.1:0").stdin(Stdio::null()).stderr(Stdio::piped());
        let Ok(child) = command.spawn() else {
            eprintln!("skipped: prometheus is not installed");
            return None;
        };
        let mut process = Ended(child);
        let mut log = BufReader::new(process.0.stderr.take().unwrap()).lines().map_while(Result::ok);
        let address =
            log.find_map(|line| Some(line.split_once("msg=\"Listening on\" address=")?.1.to_owned()));
        let url = format!("http://{}", address.expect("prometheus has ended"));
        thread::spawn(move || log.for_each(drop));
        Some(Self { url, _process: process })
    }

    /// Returns the result of a query, a line for each series.
    fn query(&self, expression: &str) -> String {
        let output = Command::new("promtool").args(["query", "instant", &self.url, expression]).output();
        let (code, text) = said(&output.expect("promtool comes with prometheus"));
        assert!(code == 0 || text.contains("connection refused"), "{expression}: {text}");
        if code == 0 { text.trim().to_owned() } else { String::new() }
    }

    fn has(&self, expression: &str) {
        until(expression, || (!self.query(expression).is_empty()).then_some(()));
    }

    /// Waits until each query of a dashboard has data.
    fn fills(&self, dashboard: &str) {
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(file(dashboard)).unwrap()).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        let queries = panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten();
        for query in queries {
            let query = query["expr"].as_str().unwrap();
            // As Grafana replaces them for this scrape interval, and for all hosts.
            self.has(&query.replace("$__rate_interval", "4s").replace("$instance", ".+"));
        }
    }
}

/// The names of metrics in a text.
fn names(text: &str) -> BTreeSet<&str> {
    let words = text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
    words.filter(|word| word.starts_with("mpib_")).collect()
}

//= agent.md: promtool accepts the alert rules
#[test]
fn promtool_accepts_the_alert_rules() {
    let mut command = Command::new("promtool");
    match command.args(["check", "rules"]).arg(file("alerts.yaml")).output() {
        Ok(output) => assert!(output.status.success(), "{}", said(&output).1),
        Err(_) => eprintln!("skipped: promtool is not installed (Debian: prometheus)"),
    }
}

//= agent.md: each panel and each alert rule has data, a rail that is down raises its alert, and a port also without a job
#[test]
fn no_panel_is_empty() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::bind(dir.path(), Config::parse("default_share = 341").unwrap(), None).unwrap();
    let adapters = dir.path().join("sys");
    let listener = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let http = Http::start(Some(listener), dir.path(), Source::new(&adapters), server.handle()).unwrap();
    thread::spawn(move || server.run().unwrap());
    let Some(prometheus) = Prometheus::start(dir.path(), &http.address().unwrap().to_string()) else {
        return;
    };

    let devices = ["out", "up"].map(|name| format!("mon{name}{}", std::process::id()));
    let rails: Vec<String> = devices
        .iter()
        .enumerate()
        .map(|(i, device)| {
            let place = adapters.join(device);
            fs::create_dir_all(place.join("ports/1")).unwrap();
            fs::write(place.join("ports/1/rate"), "4 Gb/sec (1X QDR)\n").unwrap();
            fs::write(place.join("ports/1/state"), "4: ACTIVE\n").unwrap();
            let place = place.display();
            format!("{device}:addr=10.9.{i}.1/24,rate=200MB,counters=on,sysfs={place}")
        })
        .collect();
    let mut perf = crate::job::transfer_command("monitoring", &rails.join(";"), &devices, dir.path());
    let perf = Ended(perf.env("MPIB_JOB", "monitoring").spawn().unwrap());

    let [_, sup] = &devices;
    prometheus.has(&format!("rate(mpib_rail_transmit_bytes_total{{device=\"{sup}\"}}[5s]) > 0"));
    let cable = |state: &str| fs::write(adapters.join(sup).join("ports/1/state"), state).unwrap();
    crate::job::link("monitoring", sup, "down");
    cable("1: DOWN\n");
    prometheus.has(&format!("ALERTS{{alertname=\"MpibRailDown\", device=\"{sup}\"}}"));
    // Its tables have what is wrong, and are empty otherwise.
    prometheus.fills("fleet.json");
    crate::job::link("monitoring", sup, "up");
    cable("4: ACTIVE\n");
    prometheus.has(&format!("mpib_rail_state{{device=\"{sup}\", state=\"healthy\"}} == 1"));

    prometheus.fills("host.json");
    let rules = fs::read_to_string(file("alerts.yaml")).unwrap();
    for metric in names(&rules) {
        prometheus.has(metric);
    }
    assert_eq!(prometheus.query("scrape_samples_scraped > 100").lines().count(), 1);

    // A cable is pulled, and the job ends for it.
    cable("1: DOWN\n");
    drop(perf);
    prometheus.has("mpib_processes == 0");
    prometheus.has(&format!("ALERTS{{alertname=\"MpibPortDown\", device=\"{sup}\"}}"));
    prometheus.has(&format!("mpib_port_up{{device=\"{sup}\"}} == 0"));
}
