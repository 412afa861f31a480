//! Every version's table of a fake plugin, driven from `init` to `finalize`.

#[path = "../../../versions/tests/common/fake.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "the fake of nccl-net-versions' own tests")]
mod fake;
#[path = "../../../versions/tests/common/net.rs"]
#[allow(dead_code, unreachable_pub, missing_docs, reason = "the tests of nccl-net-versions use the rest")]
mod net;

use std::{ffi::c_int, time::Duration};

use fake::{Act, Fake, Record, lock, record};
use nccl_net_host::{Call, Code, Error, Net, Recv, RecvComm, SendComm, Settings, Table, abi};
use nccl_net_versions::Failure;

const LIMIT: Duration = Duration::from_secs(10);

/// Runs `test` with every version's table of a fake that no other test uses.
macro_rules! every_version {
    (|$version:ident, $table:ident, $record:ident| $body:block) => {{
        fn body($version: u32, $table: Table, $record: &'static Record) $body
        const LINE: u32 = line!() * 100;
        body(6, net::table::<Fake<{ LINE + 6 }>>(6), record(LINE + 6));
        body(7, net::table::<Fake<{ LINE + 7 }>>(7), record(LINE + 7));
        body(8, net::table::<Fake<{ LINE + 8 }>>(8), record(LINE + 8));
        body(9, net::table::<Fake<{ LINE + 9 }>>(9), record(LINE + 9));
        body(10, net::table::<Fake<{ LINE + 10 }>>(10), record(LINE + 10));
        body(11, net::table::<Fake<{ LINE + 11 }>>(11), record(LINE + 11));
        body(12, net::table::<Fake<{ LINE + 12 }>>(12), record(LINE + 12));
    }};
}

fn init(table: Table) -> Net {
    Net::init(table, &Settings::default()).unwrap()
}

fn pair(net: &Net) -> (SendComm, RecvComm) {
    net.connect_to_itself(0, LIMIT).unwrap()
}

/// Numbers of a call's record by name, as in `comm=7 len=3`.
fn value(call: &str, name: &str) -> String {
    let word = call.split(' ').find_map(|word| word.strip_prefix(name)?.strip_prefix('='));
    word.unwrap_or_else(|| panic!("no {name} in {call}")).to_owned()
}

#[test]
fn a_life_from_init_to_finalize_makes_nccls_calls_in_order() {
    every_version!(|version, table, record| {
        assert_eq!(table.version(), version);
        assert_eq!(table.name().as_deref(), Some("Fake"));
        let net = init(table);
        assert_eq!(net.devices(), Ok(2));
        let (send, recv) = pair(&net);
        let (from, to) = (send.register(vec![1; 100]).unwrap(), recv.register(vec![2; 300]).unwrap());

        *lock(&record.sizes) = vec![70];
        let mut request = send.isend(from.mr(), 10, 70, 5).unwrap().unwrap();
        assert_eq!(send.wait(&mut request, LIMIT).unwrap()[0], 70);
        *lock(&record.sizes) = vec![7, 8];
        let group = [7, 8].map(|n| Recv { mr: to.mr(), offset: 10 * n, len: n, tag: n as c_int });
        let mut request = recv.irecv(&group).unwrap().unwrap();
        assert_eq!(recv.wait(&mut request, LIMIT).unwrap()[..3], [7, 8, 0]);
        recv.irecv_consumed(&request).unwrap();
        let mut flush = recv.iflush(&group).unwrap().unwrap();
        recv.wait(&mut flush, LIMIT).unwrap();

        assert_eq!(send.release(from).unwrap(), [1; 100]);
        assert_eq!(recv.release(to).unwrap(), [2; 300]);
        send.close().unwrap();
        recv.close().unwrap();
        net.finalize().unwrap();

        let names: Vec<String> =
            record.calls().iter().map(|call| call.split(' ').next().unwrap().to_owned()).collect();
        let mut expected = vec!["init", "devices", "listen", "connect", "accept", "close_listen"];
        expected.extend(["reg_mr_send", "reg_mr_recv", "isend", "test", "irecv", "test"]);
        expected.extend(["iflush", "test", "dereg_mr", "dereg_mr", "close_send", "close_recv"]);
        // Before v11 the adapters of nccl-net-versions end a context when the process ends.
        expected.extend((version >= 11).then_some("finalize"));
        assert_eq!(names, expected, "v{version}");

        let isend = &record.calls_of("isend")[0];
        assert_eq!((value(isend, "len"), value(isend, "tag")), ("70".into(), "5".into()));
        assert_eq!(value(isend, "profiled"), (version >= 10).to_string(), "v{version}");
        let irecv = &record.calls_of("irecv")[0];
        assert!(irecv.contains("+7 tag=7") && irecv.contains("+8 tag=8"), "{irecv}");
        assert!(irecv.contains("optional=false"), "{irecv}");
    });
}

#[test]
fn settings_reach_the_versions_that_have_them() {
    every_version!(|version, table, record| {
        let settings = Settings { comm_id: 77, traffic_class: Some(3), ..Settings::default() };
        let net = Net::init(table, &settings).unwrap();
        let (send, recv) = pair(&net);
        let given = lock(&record.init).take().unwrap();
        let (class, id) = if version >= 11 { (Some(3), 77) } else { (None, 0) };
        assert_eq!((given.config.traffic_class, given.comm_id), (class, id), "v{version}");
        // From v11 on, the adapters pass the class of init on.
        let class = if version >= 10 { "class=Some(3)" } else { "class=None" };
        let connect = &record.calls_of("connect")[0];
        assert!(connect.contains(class), "v{version}: {connect}");
        send.close().unwrap();
        recv.close().unwrap();
        net.finalize().unwrap();

        // No structure at all, as some releases of NCCL have it.
        let settings = Settings { traffic_class: None, ..Settings::default() };
        let net = Net::init(table, &settings).unwrap();
        let (send, recv) = pair(&net);
        // Before v11 the adapters have one context for the process.
        let given = lock(&record.init).take();
        assert_eq!(given.map(|init| init.config.traffic_class), (version >= 11).then_some(None));
        assert!(record.calls_of("connect")[1].contains("class=None"), "v{version}");
        send.close().unwrap();
        recv.close().unwrap();
        net.finalize().unwrap();
    });
}

#[test]
fn properties_have_every_field_of_their_version_and_no_other() {
    every_version!(|version, table, record| {
        let net = init(table);
        let p = net.properties(1).unwrap();
        assert_eq!((p.name.as_deref(), p.pci_path.as_deref()), (Some("fake0"), Some("/sys/devices/fake0")));
        assert_eq!((p.guid, p.ptr_support, p.speed, p.port), (0x1122_3344_5566_7788, 7, 400_000, 3));
        assert_eq!((p.latency, p.max_comms, p.max_recvs), (1.5, 1024, 5));
        let from = |first: u32| version >= first;
        assert_eq!((p.device_type, p.device_version), (from(7).then_some(1), from(7).then_some(9)));
        assert_eq!((p.reg_is_global, p.force_flush), (from(8).then_some(true), from(9).then_some(true)));
        assert_eq!(p.vdevs, from(9).then(|| vec![1]));
        assert_eq!((p.max_p2p_bytes, p.max_coll_bytes), (from(9).then_some(4096), from(9).then_some(8192)));
        assert_eq!(p.max_multi_request_size, from(11).then_some(11));
        assert_eq!((p.rail_id, p.plane_id), (from(12).then_some(12), from(12).then_some(13)));
        assert_eq!(p.max_bytes(), if version >= 9 { 4096 } else { 1 << 30 });
        assert_eq!(net.properties(2).unwrap_err().code(), Some(Code::InvalidArgument));
        assert_eq!(record.calls_of("properties").len(), 2);
        net.finalize().unwrap();
    });
}

#[test]
fn virtual_devices_are_made_from_v9_on() {
    every_version!(|version, table, record| {
        let net = init(table);
        let most = match version {
            ..=8 => {
                let text = format!("v{version} has no makeVDevice; use a table of v9 or later");
                assert_eq!(net.make_vdevice(&[0, 1]), Err(Error::Unsupported(text)));
                0
            }
            9..=11 => 4,
            _ => 8,
        };
        if most > 0 {
            assert_eq!(net.make_vdevice(&[1, 0]), Ok(2));
            let many: Vec<c_int> = (0..=most).collect();
            assert_eq!(net.make_vdevice(&many[1..]), Ok(2), "v{version}");
            assert!(matches!(net.make_vdevice(&many), Err(Error::Unsupported(_))), "v{version}");
            assert!(record.calls_of("make_vdevice")[0].contains("[1, 0]"));
            assert_eq!(record.calls_of("make_vdevice").len(), 2);
        }
        net.finalize().unwrap();
    });
}

/// A call of a table in use.
type Step = fn(&Net) -> Result<(), Error>;

#[test]
fn every_failure_names_its_call_and_code() {
    every_version!(|version, table, record| {
        let fails = |call: &'static str| record.act(call, Act::Fail(Failure::Remote));
        #[track_caller]
        fn failed<T: std::fmt::Debug>(
            record: &Record,
            rust: &'static str,
            call: Call,
            result: Result<T, Error>,
        ) {
            match result {
                Err(Error::Returned { call: found, code: Code::RemoteError, .. }) if found == call => {
                    record.normal(rust);
                }
                other => panic!("{rust}: {other:?}"),
            }
        }
        fails("init");
        failed(record, "init", Call::Init, Net::init(table, &Settings::default()));
        let net = init(table);
        let all: [(&'static str, Call, Step); 4] = [
            ("devices", Call::Devices, |net| net.devices().map(drop)),
            ("properties", Call::GetProperties, |net| net.properties(0).map(drop)),
            ("listen", Call::Listen, |net| net.listen(0).map(drop)),
            ("connect", Call::Connect, |net| net.connect(0, &mut Default::default()).map(drop)),
        ];
        for (rust, call, run) in all {
            fails(rust);
            failed(record, rust, call, run(&net));
        }
        let listener = net.listen(0).unwrap();
        fails("accept");
        failed(record, "accept", Call::Accept, listener.accept());
        fails("close_listen");
        failed(record, "close_listen", Call::CloseListen, listener.close());

        let (send, recv) = pair(&net);
        fails("reg_mr_send");
        failed(record, "reg_mr_send", Call::RegMr, send.register(vec![0; 8]));
        let (from, to) = (send.register(vec![0; 8]).unwrap(), recv.register(vec![0; 8]).unwrap());
        let group = [Recv { mr: to.mr(), offset: 0, len: 8, tag: 0 }];
        fails("isend");
        failed(record, "isend", Call::Isend, send.isend(from.mr(), 0, 8, 0));
        fails("irecv");
        failed(record, "irecv", Call::Irecv, recv.irecv(&group));
        fails("iflush");
        failed(record, "iflush", Call::Iflush, recv.iflush(&group));
        let mut request = send.isend(from.mr(), 0, 8, 0).unwrap().unwrap();
        fails("test");
        failed(record, "test", Call::Test, send.wait(&mut request, LIMIT));
        send.wait(&mut request, LIMIT).unwrap();
        fails("dereg_mr");
        failed(record, "dereg_mr", Call::DeregMr, send.release(from));
        fails("close_send");
        failed(record, "close_send", Call::CloseSend, send.close());
        fails("close_recv");
        failed(record, "close_recv", Call::CloseRecv, recv.close());
        if version >= 11 {
            fails("finalize");
            failed(record, "finalize", Call::Finalize, net.finalize());
        }
    });
}

#[test]
fn not_now_is_none_until_it_is_done() {
    every_version!(|version, table, record| {
        let _ = version;
        let net = init(table);
        record.act("connect", Act::NotNow);
        let mut handle = Default::default();
        assert!(net.connect(0, &mut handle).unwrap().is_none());
        record.normal("connect");
        let send = net.connect(0, &mut handle).unwrap().unwrap();
        // The plugin keeps its state in the handle.
        assert!(record.calls_of("connect")[1].contains("poll=2"));
        let listener = net.listen(0).unwrap();
        record.act("accept", Act::NotNow);
        assert!(listener.accept().unwrap().is_none());
        record.normal("accept");
        let recv = listener.accept().unwrap().unwrap();
        listener.close().unwrap();

        let (from, to) = (send.register(vec![0; 8]).unwrap(), recv.register(vec![0; 8]).unwrap());
        record.act("isend", Act::NotNow);
        assert!(send.isend(from.mr(), 0, 8, 0).unwrap().is_none());
        record.act("irecv", Act::NotNow);
        assert!(recv.irecv(&[Recv { mr: to.mr(), offset: 0, len: 8, tag: 0 }]).unwrap().is_none());
        record.normal("isend");
        let mut request = send.isend(from.mr(), 0, 8, 0).unwrap().unwrap();
        record.act("test", Act::NotNow);
        assert_eq!(send.test(&mut request, &mut [0; 64]), Ok(false));
        let limit = Duration::from_millis(1);
        let late = send.wait(&mut request, limit);
        assert_eq!(late, Err(Error::TimedOut { what: "test", limit }));
        record.normal("test");
        assert!(!request.is_done());
        assert_eq!(send.test(&mut request, &mut [0; 64]), Ok(true));
        assert!(request.is_done());
        assert_eq!(
            recv.release(to).map(|bytes| bytes.len()),
            Ok(8),
            "an irecv that was refused is no request"
        );
    });
}

#[test]
fn optional_receives_carry_nccls_hint_from_v9_on() {
    every_version!(|version, table, record| {
        let net = init(table);
        let (_send, recv) = pair(&net);
        let mut memory = [0u8; 64];
        // SAFETY: the fake never accesses memory.
        let mr = unsafe { recv.reg_mr(memory.as_mut_ptr(), memory.len()) }.unwrap();
        let group = [Recv { mr: &mr, offset: 8, len: 16, tag: 2 }];
        let mut request = recv.irecv_optional(&group).unwrap().unwrap();
        recv.wait(&mut request, LIMIT).unwrap();
        let irecv = &record.calls_of("irecv")[0];
        assert!(irecv.contains(&format!("optional={}", version >= 9)), "v{version}: {irecv}");
        assert!(irecv.contains(&format!("[{}+16 tag=2", memory.as_ptr().addr() + 8)), "{irecv}");

        let buffer = recv.register(vec![0; 8]).unwrap();
        let group = [Recv { mr: buffer.mr(), offset: 0, len: 8, tag: 0 }];
        assert!(matches!(recv.irecv_optional(&group), Err(Error::Misuse(_))), "memory of unknown end");
        recv.dereg_mr(mr).unwrap();
    });
}

#[test]
fn what_the_caller_does_wrong_never_reaches_the_plugin() {
    every_version!(|version, table, record| {
        let net = init(table);
        let (send, recv) = pair(&net);
        let (other, _) = pair(&net);
        let from = send.register(vec![0; 8]).unwrap();
        let to = recv.register(vec![0; 8]).unwrap();
        let before = record.calls().len();
        #[track_caller]
        fn misuse<T: std::fmt::Debug>(result: Result<T, Error>) {
            assert!(matches!(result, Err(Error::Misuse(_))), "{result:?}");
        }
        misuse(send.isend(from.mr(), 1, 8, 0));
        misuse(send.isend(from.mr(), usize::MAX, 2, 0));
        misuse(other.isend(from.mr(), 0, 8, 0));
        misuse(recv.irecv(&[Recv { mr: from.mr(), offset: 0, len: 8, tag: 0 }]));
        misuse(recv.irecv(&[Recv { mr: to.mr(), offset: 0, len: 0, tag: 0 }; 9]));
        assert_eq!(record.calls().len(), before, "v{version}");

        let mut request = send.isend(from.mr(), 0, 8, 0).unwrap().unwrap();
        misuse(other.test(&mut request, &mut [0; 64]));
        let in_flight = send.register(vec![0; 8]).unwrap();
        misuse(send.release(in_flight));
        send.wait(&mut request, LIMIT).unwrap();
        misuse(send.test(&mut request, &mut [0; 64]));
        assert_eq!(record.calls_of("test").len(), 1);
        misuse(other.release(from));
        misuse(net.finalize());
        assert!(record.calls_of("finalize").is_empty() && record.calls_of("dereg_mr").is_empty());
    });
}

#[test]
fn sizes_that_a_version_cannot_pass_are_refused() {
    every_version!(|version, table, record| {
        let net = init(table);
        let (send, _recv) = pair(&net);
        let long = c_int::MAX as usize + 1;
        // SAFETY: the fake never accesses memory.
        let whole = unsafe { send.reg_mr(std::ptr::without_provenance_mut(4096), long) };
        if version < 8 {
            let text = format!("2147483648 bytes do not fit the regMr of v{version}; use smaller messages");
            assert_eq!(whole.map(drop), Err(Error::Unsupported(text)));
            return;
        }
        let mr = whole.unwrap();
        let sent = send.isend(&mr, 0, long, 0).map(|request| request.is_some());
        if version < 9 {
            let text = "2147483648 bytes do not fit the isend of v8; use smaller messages";
            assert_eq!(sent, Err(Error::Unsupported(text.into())));
            assert!(record.calls_of("isend").is_empty());
        } else {
            // Whole and unchanged to the adapters, which refuse it as larger than what they offer.
            let code = sent.unwrap_err().code();
            assert_eq!(code, Some(Code::InvalidArgument), "v{version}");
            assert!(send.isend(&mr, 0, 1 << 30, 0).unwrap().is_some());
            assert_eq!(value(&record.calls_of("isend")[0], "len"), (1 << 30).to_string());
        }
    });
}

#[test]
fn dma_bufs_are_registered_with_offset_and_descriptor() {
    use std::os::fd::AsFd;
    every_version!(|version, table, record| {
        let net = init(table);
        let (send, _recv) = pair(&net);
        let file = std::fs::File::open("/dev/null").unwrap();
        let at = std::ptr::without_provenance_mut(1 << 20);
        // SAFETY: the fake never accesses memory.
        let mr = unsafe { send.reg_dma_buf(at, 512, abi::NCCL_PTR_HOST, 64, file.as_fd()) }.unwrap();
        let call = &record.calls_of("reg_mr_send")[0];
        assert!(call.contains("offset: 64") && call.contains("len=512"), "v{version}: {call}");
        send.dereg_mr(mr).unwrap();
    });
}
