// Command sslpersist uses package sslpersist alone.
package main

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/lbprim/lbprim/sslpersist"
)

func main() {
	client, server := net.Pipe()
	go func() { _ = tls.Client(client, &tls.Config{ServerName: "shop.example"}).Handshake() }()
	defer client.Close()

	var parser sslpersist.Parser
	buf := make([]byte, 4096)
	for {
		n, err := server.Read(buf)
		if err != nil {
			fmt.Println(err)
			return
		}
		hello, err := parser.Client(buf[:n])
		if errors.Is(err, sslpersist.ErrShort) {
			continue // more to come
		}
		fmt.Printf("sslpersist: %s, session ID of %d bytes, %v\n", hello.ServerName, hello.SessionID.Len(), err)
		return
	}
}
