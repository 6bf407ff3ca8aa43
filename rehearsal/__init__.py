"""Rehearse a prompt against frozen tickets on a throwaway host, before it may talk to a customer."""
