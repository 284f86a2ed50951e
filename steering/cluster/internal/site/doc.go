// Package site tests clusters as they are used: members are processes of their own, each with a data plane on a TUN device in a network
// namespace, between real clients and servers and behind a router that spreads packets by the hash of their flow, so that the two directions of a
// connection meet different members. Members are killed, frozen and cut off while connections carry data that is checked.
package site
