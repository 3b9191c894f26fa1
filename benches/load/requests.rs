//! Requests encoded before the run, so that sending one is a copy.

use prost::Message;
use tollgate::grpc::envoy::pb::extensions::common::ratelimit::v3::{
    RateLimitDescriptor, rate_limit_descriptor::Entry,
};
use tollgate::grpc::envoy::pb::service::ratelimit::v3::RateLimitRequest;
use tollgate::grpc::pb;

use super::{ENVOY_DOMAIN, Kind, Load};

/// Encoded requests of one load, one after another in one buffer: a million keys need no million allocations.
pub struct Requests {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Requests {
    /// Every key of the load stands in one request; in batches, keys that follow each other travel together, and one batch
    /// holds a key several times only when there are fewer keys than places. Joint decisions that follow each other have no key in
    /// common: what shares a script call would else have fewer names than its decisions have keys.
    pub fn of(load: &Load) -> Self {
        let mut requests = Self {
            bytes: Vec::new(),
            ends: Vec::new(),
        };
        let key = |key: usize| format!("{:0>width$}", key % load.keys, width = load.key_bytes);
        let request = |index: usize| pb::ShouldAllowRequest {
            key: key(index),
            plan: load.plan.clone(),
            cost: None,
            ..Default::default()
        };
        match load.kind {
            Kind::Unary => (0..load.keys).for_each(|key| requests.add(&framed(&request(key)))),
            Kind::Stream => (0..load.keys).for_each(|key| requests.add(&field_2(&request(key)))),
            Kind::Envoy => (0..load.keys)
                .for_each(|index| requests.add(&framed(&descriptor(&load.plan, key(index))))),
            Kind::Http => (0..load.keys)
                .for_each(|index| requests.add(http_get(load, &key(index)).as_bytes())),
            Kind::Joint(size) => (0..load.keys).for_each(|first| {
                let joint = pb::ShouldAllowJointRequest {
                    requests: (first * size..(first + 1) * size).map(request).collect(),
                    ..Default::default()
                };
                requests.add(&framed(&joint));
            }),
            Kind::Batch(size) => (0..load.keys).step_by(size).for_each(|first| {
                let batch = (first..first + size).map(request).collect();
                requests.add(&framed(&pb::ShouldAllowBatchRequest { requests: batch }));
            }),
        }
        requests
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// One request: of a unary call or a batch, the message with its gRPC head; of a stream, the message's field `request`,
    /// to which [`stream_head`] goes before.
    pub(super) fn get(&self, index: usize) -> &[u8] {
        let start = if index == 0 { 0 } else { self.ends[index - 1] };
        &self.bytes[start..self.ends[index]]
    }

    fn add(&mut self, request: &[u8]) {
        self.bytes.extend_from_slice(request);
        self.ends.push(self.bytes.len());
    }
}

/// The gRPC head of a stream's message and its field `id`, which go before the field `request` of `bytes` bytes.
pub(super) fn stream_head(id: u32, bytes: usize) -> Vec<u8> {
    let mut field = vec![0x08];
    prost::encoding::encode_varint(u64::from(id), &mut field);
    let mut head = grpc_head(field.len() + bytes).to_vec();
    head.extend_from_slice(&field);
    head
}

/// One descriptor of one entry, named as its plan, as the rules of the harness expect.
fn descriptor(plan: &str, key: String) -> RateLimitRequest {
    let entries = vec![Entry {
        key: plan.into(),
        value: key.into(),
    }];
    let descriptor = RateLimitDescriptor {
        entries,
        ..Default::default()
    };
    RateLimitRequest {
        domain: ENVOY_DOMAIN.to_owned(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    }
}

/// The request that nginx makes by `auth_request` for a client such as curl.
fn http_get(load: &Load, key: &str) -> String {
    let host = load.address(0);
    let path = load.kind.path();
    let plan = &load.plan;
    let head =
        format!("GET {path}?key={key}&plan={plan}&deny_status=403 HTTP/1.1\r\nHost: {host}\r\n");
    format!("{head}X-Forwarded-For: 192.0.2.1\r\nUser-Agent: tollgate-bench\r\nAccept: */*\r\n\r\n")
}

fn framed(message: &impl Message) -> Vec<u8> {
    let mut framed = grpc_head(message.encoded_len()).to_vec();
    framed.extend_from_slice(&message.encode_to_vec());
    framed
}

fn field_2(request: &pb::ShouldAllowRequest) -> Vec<u8> {
    let message = pb::ShouldAllowStreamRequest {
        id: 0,
        request: Some(request.clone()),
    };
    // An id of 0 is not encoded, so this is the field alone.
    message.encode_to_vec()
}

/// Not compressed, and the length.
fn grpc_head(bytes: usize) -> [u8; 5] {
    let [a, b, c, d] = (bytes as u32).to_be_bytes();
    [0, a, b, c, d]
}
