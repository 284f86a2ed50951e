package afpacket

import "net"

// An Interface is one of the interfaces of a Device as it is now.
type Interface struct {
	Name  string           // as in Config
	Index uint32           // 0 while the interface is gone
	MAC   net.HardwareAddr // do not modify
}
