// Package pcapdev is a device whose packets come from a capture file and go to another, for
// replay and for tests. It reads pcap and pcapng and writes pcap.
//
// Packets begin with an Ethernet header where the capture's link type is Ethernet, and with the IP
// header otherwise (raw IP, BSD loopback and Linux "cooked" captures lose their own link
// header). A capture whose packets were cut short by a snapshot length gives what is there.
package pcapdev
