//! The agent's page in a browser, while a job runs.

use std::fs;

use mpib_agent::http::{Http, listen};
use mpib_agent::{Config, Server};
use mpib_host_view::Source;

use crate::browser::Browser;
use crate::job::{Job, TOKEN, link, transfer};

/// Names of devices that no other job on this machine has.
fn devices(test: &str) -> [String; 2] {
    ["out", "up"].map(|name| format!("{test}{name}{}", std::process::id()))
}

/// The text of a cell in the row of a port.
fn cell(port: &str, label: &str) -> String {
    format!("document.querySelector('#ports [data-key=\"{port}:1\"] [data-label=\"{label}\"]')?.textContent")
}

/// Whether a connection runs without its rail on this port, for this reason.
fn lacks(port: &str, reason: &str) -> String {
    format!(
        "[...document.querySelectorAll('#connections td[data-label=\"rails\"]')].some(cell => \
         cell.textContent.includes('{port}:1 ({reason})'))"
    )
}

/// The button in the row of a port.
fn button(port: &str) -> String {
    format!("document.querySelector('#ports [data-key=\"{port}:1\"] [data-label=\"drain\"]')")
}

//= agent.md: the page begins with the state of the whole
//= agent.md: the page shows that a rail has died, and that it has returned
#[test]
fn a_rail_that_dies_is_shown() {
    // For the manual ("make picture").
    let picture = std::env::var_os("PAGE_PICTURE");
    let devices = match picture {
        Some(_) => ["mlx5_0", "mlx5_1"].map(String::from),
        None => devices("die"),
    };
    let job = Job::start("page-dies", devices.clone());
    let Some(mut page) = Browser::open(&job.url, 1300, 800) else { return };
    let [sout, sup] = &devices;
    let state = |port: &str| cell(port, "state");
    page.until(&format!("{} === '33 %' && {} === '67 %'", cell(sup, "share"), cell(sout, "share")));
    assert_eq!((page.eval(&state(sout)), page.eval(&state(sup))), ("✓ healthy".into(), "✓ healthy".into()));
    assert_eq!(page.eval(&cell(sup, "failovers")), "none");
    page.until("document.querySelectorAll('#connections tbody tr').length >= 2");

    if picture.is_some() {
        page.until("document.querySelector('#ports polyline').getAttribute('points').split(' ').length >= 9");
    }
    // What each event of the stream has of SUP, and what the row has once the page has taken it.
    page.eval(&format!(
        "window.seen = []; source.addEventListener('message', event => {{ \
         const port = JSON.parse(event.data).host.ports.find(port => port.name === '{sup}:1'); \
         seen.push([port.state, {}]) }})",
        state(sup)
    ));
    job.link(sup, "down");
    page.until("seen.some(([state]) => state === 'down')");
    for event in page.eval("seen").as_array().unwrap() {
        let row = match event[0].as_str().unwrap() {
            "healthy" => "✓ healthy",
            "suspect" => "▲ suspect",
            _ => "✖ down",
        };
        assert_eq!(event[1], row, "the row changes with the first event that has the change");
    }
    assert_ne!(page.eval(&cell(sup, "why")), "", "the cause");
    assert_eq!(page.eval(&state(sout)), "✓ healthy");
    // Other jobs of this machine may lack more rails than the first line names.
    page.until(
        "document.title.startsWith('✖') && document.getElementById('summary').className === 'bad' \
         && document.getElementById('summary').textContent.match(/^✖ [0-9]+ of [0-9]+ connections (is|are) degraded: /)",
    );
    page.until(&lacks(sup, "port"));
    page.until(&format!("[...document.querySelectorAll('#events li')].some(e => e.textContent.includes('port {sup}:1 is down'))"));
    page.until(&format!("{}.match(/[1-9]/) && {} === '0 %'", cell(sup, "failovers"), cell(sup, "share")));
    if let Some(file) = picture {
        fs::write(file, page.picture()).unwrap();
    }
    job.link(sup, "up");
    page.until(&format!("{} === '✓ healthy' && {} === '33 %'", state(sup), cell(sup, "share")));
    page.until(&format!("[...document.querySelectorAll('#events li')].some(e => e.textContent.includes('port {sup}:1 is healthy again'))"));
    let line =
        format!("document.querySelector('#ports [data-key=\"{sup}:1\"] polyline').getAttribute('points')");
    assert_ne!(page.eval(&line), "", "the rates of ten minutes");
    assert_eq!(page.errors, [""; 0]);
}

//= agent.md: the page has ports that no job uses, and says which have lost their link
#[test]
fn a_port_without_jobs_is_shown_when_it_loses_its_link() {
    let dir = tempfile::tempdir().unwrap();
    let port = dir.path().join("sys/idle0/ports/1");
    fs::create_dir_all(port.join("counters")).unwrap();
    let set = |name: &str, text: &str| fs::write(port.join(name), text).unwrap();
    set("state", "4: ACTIVE\n");
    set("rate", "8 Gb/sec (1X QDR)\n");
    set("counters/link_downed", "0\n");
    let server = Server::bind(dir.path(), Config::default(), None).unwrap();
    let listener = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let source = Source::new(dir.path().join("sys"));
    let http = Http::start(Some(listener), dir.path(), source, server.handle()).unwrap();
    std::thread::spawn(move || server.run().unwrap());
    let url = format!("http://{}", http.address().unwrap());
    let Some(mut page) = Browser::open(&url, 1300, 800) else { return };
    let [state, link, speed] = ["state", "link", "speed"].map(|label| cell("idle0", label));
    page.until(&format!("{state} === '– unused' && {link} === 'ACTIVE' && {speed} === 'of 1.00 GB/s, 0 %'"));
    set("counters/link_downed", "1\n");
    set("state", "1: DOWN\n");
    page.until(&format!("{state} === '✖ unused' && {link} === 'DOWN, 1 link downed'"));
    assert_eq!(page.eval(&cell("idle0", "why")), "has lost its link");
    page.until("document.getElementById('summary').textContent.includes('idle0:1 has had no link for')");
    assert_eq!(page.errors, [""; 0]);
}

/// A bar's part of its whole.
fn bar(port: &str) -> String {
    format!("Number(document.querySelector('#ports [data-key=\"{port}:1\"] .sent')?.getAttribute('width'))")
}

/// Writes a picture for a person who looks at the page, if a folder for it is named.
fn show(page: &mut Browser, name: &str) {
    if let Some(folder) = std::env::var_os("PAGE_PICTURES") {
        fs::write(std::path::Path::new(&folder).join(format!("{name}.png")), page.whole_picture()).unwrap();
    }
}

//= agent.md: the page shows each port as a bar against its speed, with marks and its connections
#[test]
fn a_port_is_a_bar_with_marks_that_opens_to_its_connections() {
    let devices = devices("wall");
    let [sout, sup] = &devices;
    let dir = tempfile::tempdir().unwrap();
    for (device, rate) in [(sout, "8"), (sup, "2")] {
        let port = dir.path().join("sys").join(device).join("ports/1");
        fs::create_dir_all(&port).unwrap();
        fs::write(port.join("state"), "4: ACTIVE\n").unwrap();
        fs::write(port.join("rate"), format!("{rate} Gb/sec (1X QDR)\n")).unwrap();
    }
    let config = Config { default_share: 341, ..Config::default() };
    let server = Server::bind(dir.path(), config, None).unwrap();
    let handle = server.handle();
    let listener = listen("127.0.0.1:0".parse().unwrap(), None).unwrap();
    let http = Http::start(Some(listener), dir.path(), Source::new(dir.path().join("sys")), handle).unwrap();
    std::thread::spawn(move || server.run().unwrap());
    let rails = format!("{sout}:addr=10.9.0.1/24,rate=400MB;{sup}:addr=10.9.1.1/24,rate=200MB");
    let _perf = transfer("page-wall", &rails, &devices, dir.path());
    let url = format!("http://{}", http.address().unwrap());
    let Some(mut page) = Browser::open(&url, 1280, 1000) else { return };
    // A third of the data on a quarter of the speed.
    page.until(&format!("{1} > 0 && {1} < {0} && {0} <= 100", bar(sup), bar(sout)));
    page.until(&format!("/^of 1.00 GB.s, [0-9]+ %$/.test({})", cell(sout, "speed")));
    let mark = |kind: &str| {
        format!("document.querySelector('#ports [data-key=\"{sup}:1\"] .mark.{kind} title')?.textContent")
    };
    assert_eq!(page.eval(&mark("bad")), serde_json::Value::Null);
    link("page-wall", sup, "down");
    page.until(&format!("{}?.includes('port {sup}:1 is down')", mark("bad")));
    page.until(&format!("{}?.includes('carried on without port {sup}:1')", mark("warn")));
    // The box opens by its name, and by the keyboard.
    let table = format!("document.querySelector('#ports [data-key=\"{sout}:1\"] table')");
    let name = format!("document.querySelector('#ports [data-key=\"{sout}:1\"] .name')");
    assert_eq!(page.eval(&format!("{table}.hidden")), true);
    page.press(&name);
    page.until(&format!("!{table}.hidden && {table}.tBodies[0].rows.length >= 2"));
    assert_eq!(page.eval(&format!("{name}.getAttribute('aria-expanded')")), "true");
    for colours in ["light", "dark"] {
        page.colours(colours);
        for width in [390, 1100, 1280, 1920] {
            page.size(width, 1000);
            let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
            assert_eq!(page.eval(fits), true, "{colours}, {width} pixels: no scrolling to the side");
            show(&mut page, &format!("page-{colours}-{width}"));
        }
    }
    page.press(&name);
    page.until(&format!("{table}.hidden"));
    assert_eq!(page.errors, [""; 0]);
}

//= agent.md: the page drains a port with the token, and shows that its share is 0
#[test]
fn a_port_is_drained_by_its_button() {
    let devices = devices("drain");
    let mut job = Job::start("page-drains", devices.clone());
    // A phone, at night.
    let Some(mut page) = Browser::open(&job.url, 390, 800) else { return };
    page.colours("dark");
    let [_, sup] = &devices;
    let share = cell(sup, "share");
    page.until(&format!("{share} === '33 %'"));
    let fits = "document.documentElement.scrollWidth <= document.documentElement.clientWidth";
    assert_eq!(page.eval(fits), true, "no scrolling to the side");
    assert_eq!(page.eval("getComputedStyle(document.body).backgroundColor"), "rgb(17, 17, 17)");

    page.press(&button(sup));
    page.until("document.getElementById('ask').open");
    page.press("document.getElementById('token')");
    page.write("not the token at all");
    page.press("document.getElementById('yes')");
    page.until("document.getElementById('refused').textContent.includes('the token is not the one in')");
    page.until(&format!("{share} === '33 %'"));
    page.eval("document.getElementById('token').value = ''");
    page.press("document.getElementById('token')");
    page.write(TOKEN);
    page.press("document.getElementById('yes')");
    page.until("!document.getElementById('ask').open");
    page.until(&format!("{share} === '0 %' && {}.endsWith(', drained')", cell(sup, "state")));
    page.until(&lacks(sup, "drained"));

    // Now the token is known.
    page.press(&button(sup));
    page.until("document.getElementById('ask').open");
    assert_eq!(page.eval("document.getElementById('token-label').hidden"), true);
    page.press("document.getElementById('yes')");
    page.until(&format!("{share} === '33 %' && {} === '✓ healthy'", cell(sup, "state")));

    job.end_agent();
    page.until("document.getElementById('link').textContent.includes('The agent does not answer since')");
    assert_eq!(page.eval("document.body.className"), "lost-data");
    assert_eq!(page.errors, [""; 0]);
}
