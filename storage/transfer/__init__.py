"""Threads and tenants to another deployment, and in from one."""
