package tun_test

import (
	"fmt"

	"github.com/lbprim/lbprim/dataplane/tun"
)

// What the kernel leaves to the program, and what has become of its packets.
func ExampleDevice_Offload() {
	dev, err := tun.Open(nil) // an interface with a name of the kernel's choice
	if err != nil {
		fmt.Println(err) // e.g. not root
		return
	}
	defer dev.Close()
	var left tun.Offload = dev.Offload() //nolint:staticcheck // the name of the type is what is shown
	fmt.Println("partial checksums:", left.Checksum, "TCP super-packets:", left.TCP, "UDP super-packets:", left.UDP)
	var st tun.Stats = dev.Stats() //nolint:staticcheck // the name of the type is what is shown
	fmt.Println(st.Read, "read", st.Written, "written", st.Split, "of them in parts")
}
