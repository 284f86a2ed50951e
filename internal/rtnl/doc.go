// Package rtnl asks the Linux kernel for links, addresses, routes and routing rules, by
// route netlink (rtnetlink(7)) and without the ip command.
//
// Every function opens a socket of its own in the network namespace of the calling
// thread, and returns when the kernel has acknowledged the request. Nothing here
// is fast, or needs to be.
package rtnl
